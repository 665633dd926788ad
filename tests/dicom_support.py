"""DICOM series as a scanner's export has them, their bytes written here and not by the library that reads them.

Explicit VR little endian, DICOM PS3.5 section 7.1.2 and PS3.10 section 7.1.
"""

from __future__ import annotations

import struct
from itertools import count
from pathlib import Path

import numpy as np

CT_IMAGE, REPORT = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.88.11"
_EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.1.2.1"
_TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
_TAGS = {
    "ImageType": (0x0008, 0x0008, "CS"), "SOPClassUID": (0x0008, 0x0016, "UI"),
    "SOPInstanceUID": (0x0008, 0x0018, "UI"),
    "Modality": (0x0008, 0x0060, "CS"), "PatientName": (0x0010, 0x0010, "PN"), "PatientID": (0x0010, 0x0020, "LO"),
    "SliceThickness": (0x0018, 0x0050, "DS"), "StudyInstanceUID": (0x0020, 0x000D, "UI"),
    "SeriesInstanceUID": (0x0020, 0x000E, "UI"), "InstanceNumber": (0x0020, 0x0013, "IS"),
    "ImagePositionPatient": (0x0020, 0x0032, "DS"), "ImageOrientationPatient": (0x0020, 0x0037, "DS"),
    "SamplesPerPixel": (0x0028, 0x0002, "US"), "PhotometricInterpretation": (0x0028, 0x0004, "CS"),
    "NumberOfFrames": (0x0028, 0x0008, "IS"), "Rows": (0x0028, 0x0010, "US"), "Columns": (0x0028, 0x0011, "US"),
    "PixelSpacing": (0x0028, 0x0030, "DS"), "BitsAllocated": (0x0028, 0x0100, "US"),
    "BitsStored": (0x0028, 0x0101, "US"),
    "HighBit": (0x0028, 0x0102, "US"), "PixelRepresentation": (0x0028, 0x0103, "US"),
    "RescaleIntercept": (0x0028, 0x1052, "DS"), "RescaleSlope": (0x0028, 0x1053, "DS"),
    "PixelData": (0x7FE0, 0x0010, "OW"),
}  # fmt: skip
_numbers = count(1)


def series_uid(number: int = 0) -> str:
    return f"2.25.1000{number}"


def _element(group: int, element: int, kind: str, value: object) -> bytes:
    if kind == "US":
        data = struct.pack("<H", value)
    elif isinstance(value, bytes):
        data = value
    else:
        text = "\\".join(map(str, value)) if isinstance(value, list) else str(value)
        data = text.encode()
        data += (b"\0" if kind == "UI" else b" ") * (len(data) % 2)
    head = struct.pack("<HH", group, element) + kind.encode()
    long = kind in ("OB", "OW")
    return head + (struct.pack("<HI", 0, len(data)) if long else struct.pack("<H", len(data))) + data


def write_file(path: Path, tags: dict[str, object]) -> Path:
    """A file with these tags; those of None are left out."""
    instance = f"2.25.{next(_numbers)}"
    known = {"SOPClassUID": CT_IMAGE, "SOPInstanceUID": instance, **tags}
    body = [_element(*_TAGS[name], value) for name, value in known.items() if value is not None]
    meta = b"".join(
        [
            _element(2, 1, "OB", b"\0\1"),
            _element(2, 2, "UI", known["SOPClassUID"]),
            _element(2, 3, "UI", instance),
            _element(2, 0x10, "UI", _EXPLICIT_LITTLE_ENDIAN),
            _element(2, 0x12, "UI", "2.25.5"),
        ]
    )
    length = struct.pack("<HH2sHI", 2, 0, b"UL", 4, len(meta))
    path.parent.mkdir(parents=True, exist_ok=True)
    in_order = sorted(body, key=lambda data: struct.unpack("<HH", data[:4]))
    path.write_bytes(b"\0" * 128 + b"DICM" + length + meta + b"".join(in_order))
    return path


def write_slice(path: Path, pixels: np.ndarray, uid: str, **tags: object) -> Path:
    """One image ``(row, column)`` in int16, or several frames of it; it has no place unless ``tags`` say one."""
    frames, rows, columns = (1, *pixels.shape)[-3:]
    known = {
        "SeriesInstanceUID": uid, "StudyInstanceUID": "2.25.7", "PatientName": "Doe^Jane", "PatientID": "secret-7",
        "Modality": "CT", "ImageType": ["ORIGINAL", "PRIMARY", "AXIAL"], "Rows": rows, "Columns": columns,
        "SamplesPerPixel": 1, "PhotometricInterpretation": "MONOCHROME2", "BitsAllocated": 16, "BitsStored": 16,
        "HighBit": 15, "PixelRepresentation": 1, "PixelData": np.ascontiguousarray(pixels, dtype="<i2").tobytes(),
        "NumberOfFrames": frames if pixels.ndim == 3 else None,
    }  # fmt: skip
    return write_file(path, {**known, **tags})


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
        spatial = {
            "ImageOrientationPatient": [f"{value:.9f}" for value in orientation],
            "ImagePositionPatient": [f"{value:.6f}" for value in place],
            "PixelSpacing": [f"{steps[1]:.6f}", f"{steps[0]:.6f}"],  # between rows, between columns
            "RescaleSlope": rescale, "RescaleIntercept": -k, "InstanceNumber": k + 1,
        }  # fmt: skip
        stored = np.round((volume[..., k].T + k) / rescale)  # rows are y
        path = folder / f"IM{(7 * k) % 101:03d}"
        files.append(write_slice(path, stored, series_uid(number), **{**spatial, **tags}))
    return files
