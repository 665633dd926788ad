"""Write an embedded federation as files: into a folder of the user's, or once into the cache."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import cache_folder
from polyclinic.core.seeds import seed_for
from polyclinic.data.phantoms.catalogue import DEMOS, Demo, find_demo

# Part of the cache folder's name: raise it when any demo's images change.
VERSION = 1


def write_demo(
    name: str, folder: Path, seed: int = 0, size: int | tuple[int, ...] | None = None, cases: int | None = None
) -> None:
    """Write an embedded federation as files into an empty or new folder.

    ``size`` is that of a file's image ``(*spatial)``, or the length of its longer axes; ``cases`` is per site.
    """
    demo = find_demo(name)
    spatial = _size(demo, size)
    if cases is not None and cases < 1:
        raise PolyclinicError(f"demo '{name}': cases is {cases}, but every site needs at least 1.")
    _make_empty(folder)
    table = {
        "name": f"{name}-demo", "classes": demo.classes, "modality": demo.modality, "channels": demo.channels,
        "spatial_dims": demo.spatial_dims,
    }  # fmt: skip
    table |= {"regions": demo.regions} if demo.regions else {}
    (folder / "federation.toml").write_text(
        f"# Synthetic: {demo.description}.\n{tomli_w.dumps(table)}", encoding="utf-8"
    )
    rows = ["site,image,case,split"]
    for site, default_cases in demo.cases.items():
        rows += _write_site(name, folder, site, cases or default_cases, seed, spatial)
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def demo_folder(name: str) -> Path:
    """The folder of an embedded federation in the cache; drawn on first use, whole or not there at all."""
    find_demo(name)
    parent = cache_folder() / "demo"
    folder = parent / f"{name}-{VERSION}"
    if folder.is_dir():
        return folder
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as temporary:
            drawn = Path(temporary) / name
            write_demo(name, drawn)
            try:
                drawn.rename(folder)
            except OSError:
                # Another process was faster: a folder that is not empty cannot be replaced, and holds the same files.
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise PolyclinicError(
            f"{parent}: the demo cannot be written there ({error.strerror or error}); "
            "free some space or set POLYCLINIC_CACHE to another folder."
        ) from error
    return folder


def _size(demo: Demo, size: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if isinstance(size, int):
        size = tuple(size if length == max(demo.size) else length for length in demo.size)
    spatial = size or demo.size
    if len(spatial) != len(demo.size) or min(spatial) < 4:
        raise PolyclinicError(
            f"size is {spatial}, but expected {len(demo.size)} lengths of at least 4, such as {demo.size}."
        )
    return spatial


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not os.listdir(folder)  # noqa: PTH208 (iterdir is lazy and needs next with a default)
    except OSError as error:
        raise PolyclinicError(
            f"{folder}: cannot be made ({error.strerror or error}); choose another folder."
        ) from error
    if not empty:
        raise PolyclinicError(f"{folder}: is not empty; choose a new folder so that no file is overwritten.")


def _splits(count: int) -> list[str]:
    """A split for each case, about 60/20/20; the test set gets the second case, validation the third."""
    held_out = max(1, round(0.2 * count))
    test, val = min(held_out, count - 1), min(held_out, max(count - 2, 0))
    return ["train"] * (count - test - val) + ["val"] * val + ["test"] * test


def _write_site(demo_name: str, folder: Path, site: str, cases: int, seed: int, size: tuple[int, ...]) -> list[str]:
    """Write a site's files and return its rows of the manifest."""
    demo = DEMOS[demo_name]
    for kind in ("images", "labels"):
        (folder / site / kind).mkdir(parents=True)
    rows = []
    for number, split in enumerate(_splits(cases), start=1):
        case = f"case-{number:03d}"
        for index in range(1, demo.images_per_case + 1):
            name = f"{case}-{index}" if demo.images_per_case > 1 else case
            rng = np.random.default_rng(seed_for(seed, demo_name, site, number, index))
            drawing = demo.draw(rng, site, size)
            file = name + demo.suffix
            _write_image(folder / site / "images" / file, drawing.image, drawing.spacing)
            _write_image(folder / site / "labels" / file, drawing.mask, drawing.spacing)
            rows.append(f"{site},{name},{case},{split}")
    return rows


def _write_image(path: Path, array: NDArray[Any], spacing: tuple[float, ...]) -> None:
    if path.suffix == ".png":
        from PIL import Image

        Image.fromarray(array).save(path)
        return
    import nibabel

    image = nibabel.Nifti1Image(array, np.diag([*spacing, 1.0]))
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)
