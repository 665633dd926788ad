"""Is an exported model the run's? The same images through both, and every difference counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import counted, printable_line
from polyclinic.data.federation import Federation, Item
from polyclinic.data.own_intensity import with_own_intensity
from polyclinic.data.preprocessing import prepare, to_file_grid
from polyclinic.export.standalone import preparation
from polyclinic.export.standalone.image_files import ImageFiles
from polyclinic.export.standalone.segment import Model
from polyclinic.federation.workspace import Workspace

Array = np.ndarray[Any, np.dtype[Any]]
MOST_DIFFERENCE = 1e-3
"""Of probabilities: what float32 in another order of sums can do, with room; a wrong step is far beyond it."""


@dataclass(frozen=True)
class Check:
    """How far an exported model is from the run's own over some images."""

    kind: str
    images: tuple[str, ...]
    largest_difference: float
    pixels: int
    differing: int
    unexplained: int
    """Pixels whose two classes are further apart than rounding explains."""
    foreground: int = 0
    """Pixels of the run's masks that are not background: with none, or with all, equal masks say little."""

    @property
    def passed(self) -> bool:
        """Whether rounding explains every difference."""
        return self.largest_difference <= MOST_DIFFERENCE and not self.unexplained

    def sentence(self) -> str:
        """What was compared, and what came out."""
        kind = "test image" if self.kind == "test" else "synthetic image"
        masks = "masks are identical" if not self.differing else f"{counted(self.differing, 'mask pixel')} differ"
        return (
            f"checked on {counted(len(self.images), kind)}: {masks} "
            f"({self.pixels} pixels, {self.foreground} not background), "
            f"largest difference of a probability {self.largest_difference:.1e}"
        )


@dataclass(frozen=True)
class Expected:
    """What the run says of one image: probabilities ``(sample, class, *spatial)`` as prepared, and the mask."""

    item: Item
    probabilities: Array
    mask: Array


def expected_predictions(workspace: Workspace, federation: Federation, items: Iterable[Item]) -> list[Expected]:
    """The run's own predictions, as ``polyclinic predict`` makes them."""
    found, items = [], list(items)
    # To a prediction all images are of no site, or of the one that was chosen.
    nowhere = [Item("", item.name, item.images, None, item.case, places=item.places) for item in items]
    federation = with_own_intensity(federation, nowhere, workspace.recipe.data)
    for item, unlabelled in zip(items, nowhere, strict=True):
        prepared = prepare(unlabelled, federation, workspace.recipe.data)
        batches = torch.split(torch.stack([one.image for one in prepared]), workspace.recipe.evaluation.batch_size)
        probabilities = torch.cat([workspace.predict(batch).cpu() for batch in batches])
        whole = probabilities if prepared[0].slice_index is not None else probabilities[0]
        found.append(Expected(item, probabilities.numpy(), to_file_grid(whole, prepared[0].geometry)))
    return found


def compare(
    model: Model, expected: list[Expected], kind: str, read_mask: Callable[[Expected], Array] | None = None
) -> Check:
    """Run an exported model over the images; ``read_mask`` gives masks that another program has made with it."""
    largest, pixels, differing, unexplained, foreground = 0.0, 0, 0, 0, 0
    model.scale_by([_files(wanted.item) for wanted in expected])
    for wanted in expected:
        prepared = model.prepare(_files(wanted.item))
        probabilities = model.predict(prepared.samples)
        if probabilities.shape != wanted.probabilities.shape:
            raise PolyclinicError(
                f"{wanted.item.name}: the exported model sees images of shape {probabilities.shape}, the run of "
                f"{wanted.probabilities.shape}; report this as a fault of polyclinic."
            )
        # Of NumPy, because Python's own max would pass over a NaN.
        largest = float(np.maximum(largest, np.abs(probabilities - wanted.probabilities).max()))
        whole = preparation.to_file_grid(probabilities, prepared)
        mask = whole.argmax(0) if read_mask is None else read_mask(wanted)
        differs = mask != wanted.mask
        pixels, differing = pixels + mask.size, differing + int(differs.sum())
        foreground += int((wanted.mask != 0).sum())
        chances = [np.take_along_axis(whole, np.asarray(m, dtype=np.int64)[None], 0) for m in (mask, wanted.mask)]
        apart = np.abs(chances[0] - chances[1])[0]
        unexplained += int((differs & (apart > 2 * MOST_DIFFERENCE)).sum())
    names = tuple(printable_line(f"{wanted.item.site}/{wanted.item.name}".lstrip("/")) for wanted in expected)
    return Check(kind, names, largest, pixels, differing, unexplained, foreground)


def _files(item: Item) -> ImageFiles:
    return ImageFiles(item.name, tuple(Path(path) for path in item.images), tuple(item.places))
