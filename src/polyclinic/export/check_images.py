"""The images that an export is checked on: test images of the run where they are at hand, else synthetic ones."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item
from polyclinic.data.open_federation import open_federation
from polyclinic.export.standalone.image_files import suffix_of
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.folder import RunFolder

_MOST = 4  # images: a volume can take minutes, and one image of each of a few sites shows what there is to see
_SYNTHETIC = 2


@dataclass(frozen=True)
class CheckImages:
    """``kind`` is ``test`` or ``synthetic``; ``why`` says why test images could not be used."""

    kind: str
    items: tuple[Item, ...]
    why: str = ""


def find_check_images(
    workspace: Workspace, federation: Federation, folder: RunFolder, part: str, site: str | None, scratch: Path
) -> CheckImages:
    """Test images of the run, in turns from its sites or from one; synthetic ones are written into ``scratch``."""
    try:
        there = open_federation(workspace.recipe.federation, workspace.recipe.data)
        if there.task != workspace.task or there.volumes_as_slices != federation.volumes_as_slices:
            raise PolyclinicError("the federation has another task now")
        items = tuple(islice(_test_items(there, folder, part, site), _MOST))
        if not items:
            raise PolyclinicError("no test image of the run is in the federation")
        if not all(suffix_of(path) for item in items for path in item.images):
            raise PolyclinicError(f"{items[0].images[0].name} has a format that exported programs do not read")
    except PolyclinicError as error:
        return CheckImages("synthetic", synthetic_items(workspace, federation, scratch), str(error))
    return CheckImages("test", items)


def _test_items(federation: Federation, folder: RunFolder, part: str, site: str | None) -> Iterator[Item]:
    """One image of each site, then the next of each, and so on."""
    path = next((p for p in (folder.path / f"split-{part}.csv", folder.path / "split.csv") if p.exists()), None)
    if path is None:
        raise PolyclinicError(f"{folder.path}: has no split.csv, so the images of its test are not known")
    with path.open(newline="", encoding="utf-8") as file:
        tested = {(row["site"], row["image"]) for row in csv.DictReader(file) if row["split"] == "test"}
    by_site = [
        [item for item in items if (name, item.name) in tested]
        for name, items in federation.sites.items()
        if site in (None, name)
    ]
    for turn in zip_longest(*by_site):
        yield from (item for item in turn if item is not None)


def synthetic_items(workspace: Workspace, federation: Federation, scratch: Path) -> tuple[Item, ...]:
    """Files of blobs and noise, of the task's shape: what the exported program reads, it must read from files."""
    task, data = workspace.task, workspace.recipe.data
    shape = _shape(workspace, federation)
    spacing = data.spacing or task.nominal_spacing(len(shape)) or (1.0,) * len(shape)
    scratch.mkdir(parents=True, exist_ok=True)
    items = []
    for number in range(_SYNTHETIC):
        rng = np.random.default_rng(number)
        voxels = np.stack([_blob(rng, shape) for _ in range(task.image_channels)])
        picture = len(shape) == 2 and task.image_channels in (1, 3) and data.spacing is None
        paths = _write(scratch / f"synthetic-{number}", voxels, spacing, picture)
        items.append(Item("", f"synthetic-{number}", paths, None, f"synthetic-{number}"))
    return tuple(items)


def _shape(workspace: Workspace, federation: Federation) -> tuple[int, ...]:
    """Somewhat larger than what the network sees at once, so that windows slide and sizes are changed."""
    data, multiples = workspace.recipe.data, workspace.network.multiples
    seen: Any = data.patch or (data.size if data.size != "auto" else tuple(8 * step for step in multiples))
    shape = [size + max(2, size // 4) for size in seen]
    if federation.volumes_as_slices:
        shape.insert(data.slice_axis, 5)
    return tuple(shape)


def _blob(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Bytes ``(*spatial)``: a bright ball in noise."""
    grid = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij")
    centre = rng.uniform(-0.4, 0.4, len(shape))
    distance = sum((axis - middle) ** 2 for axis, middle in zip(grid, centre, strict=True))
    return np.clip(rng.normal(70, 25, shape) + 110 * (distance < 0.2), 0, 255).astype(np.uint8)


def _write(path: Path, voxels: Any, spacing: tuple[float, ...], picture: bool) -> tuple[Path, ...]:
    """A PNG, or a NIfTI for each channel ``(channel, *spatial)``."""
    if picture:
        from PIL import Image

        Image.fromarray(voxels[0] if len(voxels) == 1 else np.moveaxis(voxels, 0, -1)).save(path.with_suffix(".png"))
        return (path.with_suffix(".png"),)
    import nibabel

    affine = np.diag([*spacing, *[1.0] * (4 - len(spacing))])
    paths = tuple(path.with_name(f"{path.name}_{channel:04d}.nii.gz") for channel in range(len(voxels)))
    for one, channel in zip(paths, voxels, strict=True):
        nibabel.save(nibabel.Nifti1Image(channel, affine), one)
    return paths
