"""DICOM series in a folder: which files belong together, in which order, and where their slices lie in the patient.

Tags are read by ITK (GDCM). A series that is no plain stack of slices gets a sentence and never a guess: multi-frame
files, slices that are missing, several images at one place. Series are known by their SeriesInstanceUID alone, because
names of files and folders of a hospital's export may be names of patients.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.formats.dicom import SliceList

_MAGIC, _MAGIC_AT = b"DICM", 128
_UID = re.compile(r"(?=.{1,64}$)[0-9]+(\.[0-9]+)*")
_SAME = 1e-3  # orientations and spacings within a series differ by rounding
_UNEVEN = 0.1  # share of a step by which slices may lie elsewhere than evenly spaced ones would
_PIXELS = b"\xe0\x7f\x10\x00"  # the tag of an image, as all but a few ancient files store it
_DERIVED = {"SEG": "a segmentation", "RTDOSE": "a dose"}
_LARGEST_LIST = 3  # names in a sentence
_TAGS = {
    "series": "0020|000e", "instance": "0008|0018", "image_type": "0008|0008", "position": "0020|0032",
    "orientation": "0020|0037", "spacing": "0028|0030", "thickness": "0018|0050", "frames": "0028|0008",
    "samples": "0028|0002", "modality": "0008|0060", "number": "0020|0013",
}  # fmt: skip


@dataclass(frozen=True)
class FoundSeries:
    """What lies in a folder: usable series, a sentence for each of the others, and what is left out on purpose."""

    usable: dict[str, SliceList] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Slice:
    """One file: its size ``(columns, rows)``, and its tags as text."""

    file: Path
    size: tuple[int, int]
    frames: int
    tags: dict[str, str]

    def numbers(self, tag: str, count: int) -> npt.NDArray[np.float64]:
        """The numbers of a tag; raises ``ValueError`` if it has others than ``count`` of them."""
        values = np.array([float(value) for value in self.tags[tag].split("\\")])
        if values.shape != (count,) or not np.isfinite(values).all():
            raise ValueError(tag)
        return values


def is_dicom(file: Path) -> bool:
    """Whether a file says that it is DICOM."""
    try:
        with file.open("rb") as opened:
            return opened.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC
    except OSError:
        return False


def dicom_files(folder: Path) -> Iterator[Path]:
    """All DICOM files below a folder in the order of their paths; hidden ones and links to folders are left alone."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith(".") and is_dicom(Path(place) / name):
                yield Path(place) / name


def find_series(folder: Path) -> FoundSeries:
    """The series below a folder, by SeriesInstanceUID; empty if it holds no DICOM file."""
    found = FoundSeries()
    by_uid: dict[str, list[_Slice]] = {}
    unreadable = []
    for file in dicom_files(folder):
        one = _read_tags(file)
        if one is None:
            unreadable.append(file)
        elif _UID.fullmatch(one.tags["series"]):
            by_uid.setdefault(one.tags["series"], []).append(one)
        else:
            found.problems[str(file)] = f"{file}: has no valid SeriesInstanceUID; export it again."
    damaged = [file for file in unreadable if _PIXELS in file.read_bytes()]
    for file in damaged:
        found.problems[str(file)] = (
            f"{file}: its image is damaged or in a form that GDCM does not know; export it again."
        )
    if others := [file for file in unreadable if file not in damaged]:
        found.notices.append(f"{_files(others)}: DICOM without an image (a directory, report or plan); left out.")
    for uid, slices in sorted(by_uid.items()):
        if why := _beside_the_point(slices):
            found.notices.append(f"{slices[0].file.parent}: the DICOM series {uid} {why}; left out.")
            continue
        try:
            found.usable[uid] = _stacked(uid, slices)
        except PolyclinicError as error:
            found.problems[uid] = str(error)
            continue
        if doubt := _doubt(slices):
            found.notices.append(f"{slices[0].file.parent}: the DICOM series {uid} {doubt}; it is used as it is.")
    return found


def _doubt(slices: Sequence[_Slice]) -> str:
    """A hint that slices are missing at an end, where their places cannot tell; some scanners count otherwise."""
    numbers = {int(one.tags["number"]) for one in slices if one.tags["number"].isdecimal()}
    if not numbers or (min(numbers) <= 1 and max(numbers) <= len(slices)):
        return ""
    return f"has {len(slices)} slices with numbers from {min(numbers)} to {max(numbers)}, so some may be missing"


def _beside_the_point(slices: Sequence[_Slice]) -> str:
    """Why a series of a usual export is no volume to segment, or nothing: it is left out without being an error."""
    if all("LOCALIZER" in one.tags["image_type"].upper().split("\\") for one in slices):
        return "is a localizer"
    if slices[0].tags["modality"] in _DERIVED:
        return f"holds {_DERIVED[slices[0].tags['modality']]}"
    if slices[0].tags["samples"] not in ("", "1"):
        return "is in colour"
    if slices[0].frames == 1 and not slices[0].tags["position"]:
        return "does not say where its slices lie, as radiographs, ultrasound and screenshots (convert them to PNG)"
    return ""


def _read_tags(file: Path) -> _Slice | None:
    """The tags of a file, or None if it holds no image that GDCM can read."""
    import itk

    io: Any = itk.GDCMImageIO.New()
    io.SetFileName(str(file))
    try:
        io.ReadImageInformation()
    except RuntimeError:
        return None
    dictionary = io.GetMetaDataDictionary()
    tags = {name: _text(dictionary, key) for name, key in _TAGS.items()}
    frames = max(int(io.GetDimensions(2)) if io.GetNumberOfDimensions() > 2 else 1, _whole(tags["frames"]))
    return _Slice(file, (int(io.GetDimensions(0)), int(io.GetDimensions(1))), frames, tags)


def _text(dictionary: Any, key: str) -> str:
    try:
        return str(dictionary[key]).strip(" \0") if dictionary.HasKey(key) else ""
    except (UnicodeDecodeError, RuntimeError):
        return ""


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 1


def _stacked(uid: str, slices: Sequence[_Slice]) -> SliceList:
    """The slices in order with the affine of their grid; a sentence if they are no stack."""
    unique = list({one.tags["instance"] or str(one.file): one for one in slices}.values())  # a file may be there twice
    first = unique[0]
    if any(one.frames > 1 for one in unique):
        raise _refused(uid, unique, "has several frames in a file (enhanced or multi-frame DICOM)")
    try:
        places = np.stack([one.numbers("position", 3) for one in unique])
        axes = np.stack([one.numbers("orientation", 6).reshape(2, 3) for one in unique])
        spacings = np.stack([one.numbers("spacing", 2) for one in unique])
    except ValueError as error:
        raise _refused(uid, unique, "does not say for each slice where it lies") from error
    alike = [
        one.size == first.size and np.allclose(axes[number], axes[0], atol=_SAME)
        and np.allclose(spacings[number], spacings[0], rtol=_SAME, atol=0)
        for number, one in enumerate(unique)
    ]  # fmt: skip
    if not all(alike):
        others = [one.file for one, same in zip(unique, alike, strict=True) if not same]
        raise _refused(uid, unique, f"has slices of different sizes or orientations ({_files(others)} of them)")
    normal = np.cross(*axes[0])
    order = np.argsort(places @ normal, kind="stable")
    ordered = [unique[number] for number in order]
    step = _step(uid, ordered, places[order], normal)
    affine = np.eye(4)
    # A column's number grows along the row, by the second of the two spacings, which is between columns.
    affine[:3, :3] = np.stack([axes[0][0] * spacings[0][1], axes[0][1] * spacings[0][0], step], axis=1)
    affine[:3, 3] = places[order[0]]
    if abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise _refused(uid, unique, "has directions or spacings that make no grid")
    to_ras = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM counts to the left and to the back
    return SliceList(tuple(one.file for one in ordered), (*first.size, len(ordered)), to_ras @ affine)


def _step(
    uid: str, ordered: Sequence[_Slice], places: npt.NDArray[np.float64], normal: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """From one slice to the next, in millimetres ``(3,)``; with a tilted gantry it is not along the normal."""
    count = len(ordered)
    if count == 1:
        thickness = ordered[0].numbers("thickness", 1)[0] if ordered[0].tags["thickness"] else 1.0
        return normal * (thickness if thickness > 0 else 1.0)
    gaps = np.diff(places @ normal)
    usual = float(np.median(gaps))
    if (gaps <= max(0.01 * usual, 1e-6)).any():
        at = int(np.argmin(gaps))
        raise _refused(
            uid, ordered, f"has several images at one place, such as {ordered[at].file.name} and "
            f"{ordered[at + 1].file.name} (phases, echoes or b-values)", "export them as series of their own",
        )  # fmt: skip
    step: npt.NDArray[np.float64] = (places[-1] - places[0]) / (count - 1)
    even = places[0] + np.arange(count)[:, None] * step
    if (np.abs(gaps - usual) > _UNEVEN * usual).any() or (np.linalg.norm(places - even, axis=1) > usual / 2).any():
        at = int(np.argmax(np.abs(gaps - usual)))
        raise _refused(
            uid, ordered, f"lacks slices or has uneven ones: {gaps[at]:g} mm from {ordered[at].file.name} to "
            f"{ordered[at + 1].file.name}, {usual:g} mm elsewhere", "export the whole series again",
        )  # fmt: skip
    return step


def _refused(uid: str, slices: Sequence[_Slice], why: str, advice: str = "") -> PolyclinicError:
    advice = advice or "convert it to NIfTI (dcm2niix) or export it as a plain stack of slices"
    return PolyclinicError(f"{slices[0].file.parent}: the DICOM series {uid} {why}; {advice}.")


def _files(files: Sequence[Path]) -> str:
    names = ", ".join(str(file) for file in files[:_LARGEST_LIST])
    more = len(files) - _LARGEST_LIST
    return f"{names} and {more} others" if more > 0 else names
