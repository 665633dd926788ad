"""Headers that no honest writer makes are refused before they are parsed."""

from __future__ import annotations

import json
import struct
from io import BytesIO
from pathlib import Path

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.safetensors_header import require_header
from polyclinic.core.tensor_files import load_tensors, save_tensors

ENTRY = '{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
TWICE = '{"a":' + ENTRY % (0, 4) + ',"a":' + ENTRY % (4, 8) + "}"


def file_of(header: str | bytes, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def test_an_honest_header_passes(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"a": torch.ones(2), "b": torch.zeros(0)}, {"round": 1})
    with (tmp_path / "t").open("rb") as file:
        require_header(file, most_names=3)  # the plain data are an entry too


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ends before its header"),
        (file_of("{}", size=3), "ends within its header"),
        (file_of("{}", size=2**63), "its header has 9223372036854775808 bytes"),
        (file_of(TWICE, b"\0" * 8), "its header has 'a' twice"),
        (file_of('{"a":{"dtype":"F32","dtype":"F64"}}'), "its header has 'dtype' twice"),
        (file_of(json.dumps({str(n): {} for n in range(6)})), "it has 6 tensors, at most 5 are read"),
        (file_of("[" * 100_000), "nested too deeply"),
        (file_of(b"\xff\xfe{"), "decode"),
    ],
)
def test_an_odd_header_gets_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        require_header(BytesIO(data), most_names=5)


def test_a_file_with_a_name_twice_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(file_of(TWICE, b"\0" * 8))
    with pytest.raises(PolyclinicError, match=r"t\.safetensors: not a readable safetensors file .*'a' twice"):
        load_tensors(tmp_path / "t.safetensors")
