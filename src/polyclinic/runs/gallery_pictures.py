"""Images and masks of a gallery as small PNG files: which slices of a volume, turned how, in which colours."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item, Task, item_header
from polyclinic.data.formats import is_picture, spacing_of
from polyclinic.data.preprocessing import Geometry, Prepared, prepare
from polyclinic.recipe import DataSettings

# Okabe and Ito's palette without black, then Tol's "muted": both are made for readers who see few colours.
PALETTE = (
    "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
    "#882255", "#44aa99", "#ddcc77", "#332288", "#88ccee", "#117733", "#999933", "#aa4499",
)  # fmt: skip
MOST_SLICES = 24
MOST_PIXELS = {2: 256, 3: 192}  # along an edge, of an image and of a slice: a report has many of these
_OUTSIDE = 8  # slices beyond the truth, where a prediction may have gone astray
_WINDOW = (0.5, 99.5)  # percentiles that become black and white
_FAMILIES = ("LR", "PA", "IS")


def colours(count: int) -> list[str]:
    """A colour for each judged class; they repeat beyond the palette."""
    return [PALETTE[number % len(PALETTE)] for number in range(count)]


@dataclass(frozen=True)
class Planes:
    """How a prepared image or volume is cut into planes and turned towards a reader.

    ``axis`` is cut along, ``None`` for images; ``rows`` and ``columns`` are the other axes, of which those in
    ``flipped`` run backwards; ``size`` is the height and width of a picture, whose pixels are square.
    """

    axis: int | None
    rows: int
    columns: int
    flipped: tuple[int, ...]
    size: tuple[int, int]

    def of(self, array: NDArray[Any], index: int) -> NDArray[Any]:
        """Plane ``index`` of ``(*spatial)`` or ``(*spatial, colour)`` as ``(row, column)`` or with colour last."""
        turned = np.flip(array, self.flipped) if self.flipped else array
        order = (*(() if self.axis is None else (self.axis,)), self.rows, self.columns)
        turned = np.transpose(turned, (*order, *range(len(order), array.ndim)))
        return np.ascontiguousarray(turned if self.axis is None else turned[index])


def planes_of(geometry: Geometry, oriented: bool) -> Planes:
    """Cut along the slices of a 2D task, else along the axis of the coarsest spacing, the last of equals.

    Where a volume is ``oriented`` (its file knows its axes), planes are turned as radiologists look at them: front or
    head up, the patient's right on the left, and a sagittal plane looks to the left.
    """
    shape, rank = geometry.prepared_shape, len(geometry.prepared_shape)
    spacing = spacing_of(geometry.prepared_affine, rank) if geometry.in_millimetres else (1.0,) * rank
    axis = None
    if rank == 3:
        coarsest = max(spacing)
        axis = max(number for number in range(3) if spacing[number] >= 0.99 * coarsest)
        axis = axis if geometry.slice_axis is None else geometry.slice_axis
    rows, columns = (number for number in range(rank) if number != axis)
    flipped: tuple[int, ...] = ()
    if oriented and rank == 3:
        from nibabel.orientations import aff2axcodes

        codes = aff2axcodes(geometry.prepared_affine)
        family = [next(n for n, pair in enumerate(_FAMILIES) if code in pair) for code in codes]
        columns, rows = sorted((rows, columns), key=lambda number: family[number])
        flipped = tuple(number for number in (rows, columns) if codes[number] in "RAS")
    extents = shape[rows] * spacing[rows], shape[columns] * spacing[columns]
    pixel = max(min(spacing[rows], spacing[columns]), max(extents) / MOST_PIXELS[rank])
    height, width = (max(1, round(extent / pixel)) for extent in extents)
    return Planes(axis, rows, columns, flipped, (height, width))


def choose_slices(truth: NDArray[Any], axis: int | None) -> tuple[list[int], int]:
    """At most ``MOST_SLICES`` slices of a label map ``(*spatial)``, and the place among them of the fullest one.

    Where there are more, two thirds are spread over those with foreground and one third over the others.
    """
    if axis is None:
        return [0], 0
    areas = np.count_nonzero(truth, axis=tuple(number for number in range(truth.ndim) if number != axis))
    full = np.flatnonzero(areas)
    fullest = int(areas.argmax()) if len(full) else len(areas) // 2
    inside = list(range(full[0], full[-1] + 1)) if len(full) else [fullest]
    outside = [index for index in range(len(areas)) if not inside[0] <= index <= inside[-1]]
    room = MOST_SLICES - min(len(outside), max(_OUTSIDE, MOST_SLICES - len(inside)))
    chosen = {*_spread(inside, room), *_spread(outside, MOST_SLICES - min(room, len(inside)))}
    if fullest not in chosen:
        chosen.remove(min(chosen & set(inside), key=lambda index: (abs(index - fullest), index)))
    indices = sorted({*chosen, fullest})
    return indices, indices.index(fullest)


def _spread(indices: Sequence[int], count: int) -> list[int]:
    if len(indices) <= count:
        return list(indices)
    return [indices[place] for place in np.linspace(0, len(indices) - 1, count).round().astype(int)] if count else []


def judged_numbers(task: Task) -> NDArray[np.uint8]:
    """For each class the number (from 1) of what is painted there, 0 for nothing.

    Of nested regions that is the one with the fewest classes, so that a core is seen inside of its whole; of two with
    equally many the later one.
    """
    numbers = np.zeros(max(256, len(task.classes)), dtype=np.uint8)
    smallest: dict[int, int] = {}
    for number, members in enumerate(task.judged.values(), start=1):
        for member in members:
            if len(members) <= smallest.get(member, len(members)):
                smallest[member], numbers[member] = len(members), number
    numbers[0] = 0
    return numbers


def painted_regions(masks: NDArray[np.bool_], task: Task) -> NDArray[np.uint8]:
    """The numbers ``(*spatial)`` of ``judged_numbers``, from a mask of each judged region ``(region, *spatial)``."""
    painted = np.zeros(masks.shape[1:], dtype=np.uint8)
    inwards = sorted(enumerate(task.judged.values()), key=lambda region: -len(region[1]))
    for place, _ in inwards:
        painted[masks[place]] = place + 1
    return painted


def shown_intensities(item: Item, federation: Federation, settings: DataSettings) -> NDArray[np.uint8]:
    """An image on the prepared grid as bytes: ``(*spatial)`` in grey, ``(*spatial, 3)`` for a colour picture.

    Colours are the file's; grey values go from the 0.5th to the 99.5th percentile of the whole image. Of several
    channels that are no colours the first is shown.
    """
    task = replace(federation.task, neighbours=0, channels=federation.task.image_channels)
    plain = replace(federation, task=task)
    if task.image_channels == 3 and is_picture(item.images[0]):
        try:
            voxels = _whole(prepare(item, plain, settings.model_copy(update={"intensity": "full-range"})))
            return np.moveaxis(np.rint(voxels.clip(0, 1) * 255).astype(np.uint8), 0, -1)
        except PolyclinicError:  # its numbers are no unsigned integers, so that nothing says what white is
            return _bytes(np.moveaxis(_whole(prepare(item, plain, _raw(settings))), 0, -1))
    return _bytes(_whole(prepare(item, plain, _raw(settings)))[0])


def _raw(settings: DataSettings) -> DataSettings:
    return settings.model_copy(update={"intensity": "none"})


def _whole(prepared: Sequence[Prepared]) -> NDArray[np.float32]:
    """The prepared images of one file as ``(channel, *spatial)``, slices put together."""
    axis = prepared[0].geometry.slice_axis
    if axis is None:
        return np.asarray(prepared[0].image.numpy())
    return np.stack([one.image.numpy() for one in prepared], axis + 1)


def _bytes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    low, high = np.percentile(values, _WINDOW)
    if high <= low:
        low, high = float(values.min()), float(values.max())
    scaled = np.asarray((values - low) / (high - low) if high > low else np.zeros_like(values))
    result: NDArray[np.uint8] = np.rint(scaled.clip(0, 1) * 255).astype(np.uint8)
    return result


def is_oriented(item: Item) -> bool:
    """Whether an image's file knows where its axes point."""
    return item_header(item).affine is not None


def image_png(plane: NDArray[np.uint8], size: tuple[int, int]) -> bytes:
    """A plane ``(row, column)`` or ``(row, column, 3)`` as a grey or RGB PNG of ``size`` (height, width)."""
    return _png(_resized(Image.fromarray(plane), size, Image.Resampling.BILINEAR))


def mask_png(plane: NDArray[np.uint8], size: tuple[int, int], palette: Sequence[str]) -> bytes:
    """Numbers ``(row, column)``, 0 for nothing, as a PNG with a palette, transparent where there is nothing."""
    picture = Image.fromarray(plane).convert("L")
    picture = _resized(picture, size, Image.Resampling.NEAREST)
    coloured = Image.frombytes("P", picture.size, picture.tobytes())
    coloured.putpalette([0, 0, 0, *(byte for colour in palette for byte in bytes.fromhex(colour[1:]))])
    return _png(coloured, transparency=bytes([0]) + b"\xff" * len(palette))


def _resized(picture: Image.Image, size: tuple[int, int], how: Image.Resampling) -> Image.Image:
    height, width = size
    return picture if picture.size == (width, height) else picture.resize((width, height), how)


def _png(picture: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, format="PNG", optimize=True, **options)
    return file.getvalue()
