"""The contact sheet: a few images of every site in a row, with the outlines of their masks."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from PIL.PngImagePlugin import PngImageFile

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write
from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.formats import is_picture
from polyclinic.data.readers import Image, read_image, read_label

COLOURS = ("#ffd60a", "#06d6a0", "#ef476f", "#118ab2", "#f78c6b", "#c77dff", "#ffffff", "#80ed99")
Picture = tuple[NDArray[np.float32], NDArray[np.uint8], float]
MARK = "polyclinic contact sheet"
"""What the PNG says of itself as its ``Software``, by which a later sheet knows that it may replace it."""
_DPI, _DEFAULT = 120, "contact-sheet.png"


def contact_sheet(federation: Federation, path: Path, per_site: int = 6) -> int:
    """Write a PNG with one row for each site and return the number of images on it.

    Unreadable files are left out; when nothing can be read, nothing is written and the number is 0.
    Volumes are shown as the axial slice in the middle of their mask, front up, the patient's right on the left.
    """
    refuse_other_file(path)
    rows = {site: _pick(items, federation.task, per_site) for site, items in federation.sites.items()}
    count = sum(map(len, rows.values()))
    if count == 0:
        return 0
    names = {site: textwrap.fill(site, 18) for site in rows}
    left = 0.35 + 0.09 * max(len(line) for name in names.values() for line in name.splitlines())
    columns, cell, foot = max(map(len, rows.values())), 1.5, 0.35
    width, height = left + columns * cell, len(rows) * cell + foot
    figure = Figure(figsize=(width, height), facecolor="white")
    for row, (site, pictures) in enumerate(rows.items()):
        bottom = (height - (row + 1) * cell) / height
        middle = bottom + cell / 2 / height
        figure.text((left - 0.15) / width, middle, names[site], ha="right", va="center", fontsize=10)
        for column, picture in enumerate(pictures):
            place = (left + column * cell) / width, bottom, 0.96 * cell / width, 0.96 * cell / height
            _show(figure.add_axes(place), picture)
    _legend(figure, federation.task, left / width, foot / 2 / height, width)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=_DPI, metadata={"Software": MARK})
    return count


def refuse_other_file(path: Path) -> None:
    """A contact sheet may replace a contact sheet, and nothing else."""
    if path.is_dir():
        raise PolyclinicError(f"{path}: is a folder; name a file for the contact sheet, such as {path / _DEFAULT}.")
    if os.path.lexists(path) and not (path.is_file() and _is_sheet(path)):  # a link to nothing is something, too
        raise PolyclinicError(
            f"{path}: is there already and no contact sheet of polyclinic; choose another name with --sheet."
        )


def _is_sheet(path: Path) -> bool:
    try:
        with PngImageFile(path) as picture:
            about = picture.info
    except (OSError, SyntaxError, ValueError):  # no PNG, or a damaged one
        return False
    # Those of earlier versions say nothing of themselves: they have the default name, a resolution, and no text.
    plain = about.keys() == {"dpi"} and {round(number) for number in about["dpi"]} == {_DPI}
    return about.get("Software") == MARK or (plain and path.name == _DEFAULT)


def _pick(items: tuple[Item, ...], task: Task, count: int) -> list[Picture]:
    """Pictures of ``count`` images spread over the site, labelled ones if there are any; more if some are damaged."""
    labelled = [item for item in items if item.label is not None]
    pool = labelled or list(items)
    spread = [pool[index] for index in np.linspace(0, len(pool) - 1, min(count, len(pool))).round().astype(int)]
    chosen = {item.name for item in spread}
    pictures: list[Picture] = []
    for item in [*spread, *(item for item in pool if item.name not in chosen)]:
        if len(pictures) == count:
            break
        try:
            image = read_image(item, task)
            label = read_label(item, task) if item.label is not None else np.zeros(image.array.shape[1:], np.uint8)
        except PolyclinicError:
            continue
        pictures.append(_flatten(image, label, is_picture(item.images[0])))
    return pictures


def _flatten(image: Image, label: NDArray[np.uint8], picture: bool) -> Picture:
    """View ``(row, column)`` or ``(row, column, 3)`` in 0-1, its label ``(row, column)``, a pixel's height by width."""
    array = image.array
    spacing = image.spacing or (1.0,) * label.ndim
    if image.affine is not None and label.ndim == 3:
        array, label, spacing = _axial(array, label, image.affine, spacing)
    if label.ndim == 3:
        filled = np.flatnonzero(label.any(axis=(0, 1)))
        depth = int(filled[len(filled) // 2]) if len(filled) else label.shape[2] // 2
        array, label = array[..., depth], label[..., depth]
    colour = picture and len(array) == 3
    shown = np.moveaxis(array, 0, -1) if colour else array[0]
    low, high = (0.0, 255.0) if colour and 1 < array.max() <= 255 else np.percentile(shown, (0.5, 99.5)).tolist()
    return np.clip((shown - low) / max(high - low, 1e-6), 0, 1), label, spacing[0] / spacing[1]


def _axial(
    array: NDArray[np.float32], label: NDArray[np.uint8], affine: NDArray[np.float64], spacing: tuple[float, ...]
) -> tuple[NDArray[np.float32], NDArray[np.uint8], tuple[float, ...]]:
    """Turn ``(channel, x, y, z)`` of any orientation into ``(channel, row, column, slice)`` as radiologists do."""
    from nibabel.orientations import apply_orientation, axcodes2ornt, io_orientation, ornt_transform

    # Rows go from front to back, columns from the patient's right to left, slices from foot to head.
    turn: Any = ornt_transform(io_orientation(affine), axcodes2ornt(("L", "P", "S")))
    moved = [np.swapaxes(apply_orientation(volume, turn), 0, 1) for volume in (*array, label)]
    order = np.argsort(turn[:, 0])
    sides = [spacing[axis] for axis in order]
    return np.stack(moved[:-1]), moved[-1], (sides[1], sides[0], sides[2])


def _show(axes: Any, picture: Picture) -> None:
    image, label, aspect = picture
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, aspect=aspect, interpolation="nearest")
    for value in np.unique(label[label > 0]):
        mask = label == value
        if not mask.all():
            outline = axes.contour(mask, levels=[0.5], colors=[COLOURS[(value - 1) % len(COLOURS)]], linewidths=1.0)
            outline.set_path_effects([withStroke(linewidth=2.0, foreground="#000000a0")])
    axes.set_axis_off()


def _legend(figure: Figure, task: Task, x: float, y: float, width: float) -> None:
    """The names of the foreground classes in their colours; as many as fit."""
    for index, name in enumerate(task.classes[1:]):
        if x > 0.95:
            return
        colour = COLOURS[index % len(COLOURS)]
        box = {"facecolor": "#333333", "edgecolor": "none", "pad": 2.5}
        figure.text(x, y, name, color=colour, fontsize=9, ha="left", va="center", bbox=box)
        x += (0.25 + 0.08 * len(name)) / width
