"""DICOM series as a scanner's export has them, written by pydicom: another library than the one that reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


def series_uid(number: int = 0) -> str:
    return generate_uid(entropy_srcs=["polyclinic", str(number)])


def slice_dataset(pixels: np.ndarray, uid: str, **tags: object) -> FileDataset:
    """One image ``(row, column)`` in int16, without a place; tags of None are left out."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.TransferSyntaxUID = CTImageStorage, ExplicitVRLittleEndian
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    frames, rows, columns = (1, *pixels.shape)[-3:]
    known = {
        "SOPClassUID": CTImageStorage, "SOPInstanceUID": meta.MediaStorageSOPInstanceUID, "SeriesInstanceUID": uid,
        "StudyInstanceUID": series_uid(99), "PatientName": "Doe^Jane", "PatientID": "secret-7", "Modality": "CT",
        "ImageType": ["ORIGINAL", "PRIMARY", "AXIAL"], "Rows": rows, "Columns": columns, "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2", "BitsAllocated": 16, "BitsStored": 16, "HighBit": 15,
        "PixelRepresentation": 1, "PixelData": np.ascontiguousarray(pixels, dtype="<i2").tobytes(),
        **({"NumberOfFrames": frames} if pixels.ndim == 3 else {}), **tags,
    }  # fmt: skip
    for name, value in known.items():
        if value is not None:
            setattr(dataset, name, value)
    return dataset


def save(dataset: FileDataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.save_as(path, enforce_file_format=True)
    return path


def write_series(
    folder: Path, volume: np.ndarray, affine: np.ndarray, number: int = 0, rescale: float = 1.0, **tags: object
) -> list[Path]:
    """A volume ``(x, y, z)`` that lies where an affine in RAS says, one file a slice, names in no order.

    Slice ``k`` is stored divided by a slope of ``rescale`` and with an intercept of ``-k``.
    """
    lps = _TO_LPS @ affine
    steps = np.linalg.norm(lps[:3, :2], axis=0)
    orientation = [*(lps[:3, 0] / steps[0]), *(lps[:3, 1] / steps[1])]
    files = []
    for k in range(volume.shape[2]):
        place = (lps @ [0, 0, k, 1])[:3]
        stored = (volume[..., k].T + k) / rescale  # rows are y
        spatial = {
            "ImageOrientationPatient": [f"{value:.9f}" for value in orientation],
            "ImagePositionPatient": [f"{value:.6f}" for value in place],
            "PixelSpacing": [f"{steps[1]:.6f}", f"{steps[0]:.6f}"],  # between rows, between columns
            "RescaleSlope": str(rescale), "RescaleIntercept": str(-k), "InstanceNumber": k + 1,
        }  # fmt: skip
        dataset = slice_dataset(np.round(stored), series_uid(number), **{**spatial, **tags})
        files.append(save(dataset, folder / f"IM{(7 * k) % 101:03d}"))
    return files
