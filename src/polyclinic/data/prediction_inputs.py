"""The images of a file or a folder that is no site: what a trained model is asked to segment."""

from __future__ import annotations

from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.dicom_series import dicom_files, find_series, is_dicom
from polyclinic.data.formats import SUFFIXES, read_header, stem_of, suffix_of
from polyclinic.data.formats.dicom import SUFFIX as DICOM_SUFFIX
from polyclinic.data.layouts import CHANNEL_NAME, ImageFiles, by_stem, channel_files, image_files_in, places_of


@dataclass(frozen=True)
class Inputs:
    """Images to segment, a sentence for each that cannot be, by name, and what else is worth a line."""

    images: list[ImageFiles]
    problems: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def find_inputs(path: Path, scratch: Path, channels: int | None = None, zero_fill: bool = False) -> Inputs:
    """The images of ``path`` as ``list_images`` finds them, or the DICOM series in a folder and the folders in it.

    Each series is an image with the name of its SeriesInstanceUID; lists of their files are written to ``scratch``.
    """
    if not path.is_dir() or _has_images(_images_folder(path)) or next(dicom_files(path), None) is None:
        return Inputs(list_images(path, channels, zero_fill))
    if channels not in (None, 1):
        raise PolyclinicError(
            f"{path}: holds DICOM series of one channel each, but the task has {channels}; convert them to "
            "name_0000.nii.gz, name_0001.nii.gz and so on (dcm2niix)."
        )
    found = find_series(path)
    if not found.usable:
        reasons = " ".join([*found.problems.values(), *found.notices])
        raise PolyclinicError(f"{path}: holds no DICOM series that can be segmented. {reasons}")
    images = []
    for uid, series in found.usable.items():
        listed = scratch / f"{uid}{DICOM_SUFFIX}"
        series.write(listed)
        images.append(ImageFiles(uid, (listed,), None))
    return Inputs(images, found.problems, found.notices)


def list_images(path: Path, channels: int | None = None, zero_fill: bool = False) -> list[ImageFiles]:
    """The images of ``path``, by name: a file, a folder of files, or a folder with such a folder ``images`` inside.

    Files named ``name_0000``, ``name_0001`` and so on are the channels of one image, as in nnU-Net, unless the first of
    them has all ``channels`` of the task by itself: then they are frames or slices, each an image of its own. With
    ``zero_fill`` an image may lack channels.
    """
    if path.is_file():
        return [_single_file(path, channels, zero_fill)]
    if not path.is_dir():
        raise PolyclinicError(f"{path}: no such file or folder; give an image or a folder of images.")
    folder = _images_folder(path)
    if not _has_images(folder):
        raise PolyclinicError(
            f"{folder}: holds no images; give an image or a folder of images ({', '.join(SUFFIXES)}) or DICOM series."
        )
    return _grouped(image_files_in(folder), channels, zero_fill)


def _images_folder(path: Path) -> Path:
    return path / "images" if (path / "images").is_dir() else path


def _has_images(folder: Path) -> bool:
    return any(suffix_of(file) for file in folder.iterdir())


def _single_file(path: Path, channels: int | None, zero_fill: bool) -> ImageFiles:
    """A single file; of nnU-Net's ``name_0000`` with the other channels beside it."""
    if suffix_of(path) is None and is_dicom(path):
        raise PolyclinicError(f"{path}: is one file of a DICOM series; give the folder that holds the series.")
    if suffix_of(path) is None:
        raise PolyclinicError(f"{path}: unknown format; expected one of {', '.join(SUFFIXES)}, so convert it.")
    match = CHANNEL_NAME.fullmatch(stem_of(path))
    if match is None or (match[2] != "0000" and not zero_fill):
        return ImageFiles(stem_of(path), (path,), None)
    beside = sorted(path.parent.glob(f"{escape(match[1])}_[0-9][0-9][0-9][0-9].*"))
    family = [file for file in beside if suffix_of(file) == suffix_of(path)]
    return next(image for image in _grouped(family, channels, zero_fill) if path in image.images)


def _grouped(files: list[Path], channels: int | None, zero_fill: bool) -> list[ImageFiles]:
    matches = [CHANNEL_NAME.fullmatch(stem_of(file)) for file in files]
    numbers = {match[2] if match else None for match in matches}
    separate = channels is not None and None not in numbers and read_header(files[0]).channels == channels
    if None in numbers or (separate and numbers != {"0000"}):
        return [ImageFiles(name, (file,), None) for name, file in sorted(by_stem(files).items())]
    groups = sorted((channel_files(files, zero_fill) or {}).items())
    return [ImageFiles(name, group, None, places_of(group) if zero_fill else ()) for name, group in groups]
