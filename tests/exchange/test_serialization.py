"""Tensors as safetensors bytes and back, from hostile headers too."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.serialization import decode, encode

TENSORS = {
    "weights/scalar": torch.tensor(1.5),
    "weights/empty": torch.empty(0, 3),
    "weights/long": torch.tensor([2**62, -1]),
    "weights/block.0.weight": torch.arange(6.0).reshape(2, 3).T,
    "shared/cdpa/bool": torch.tensor([[True], [False]]),
    "shared/cdpa/enc/1": torch.tensor([1.5, -0.25], dtype=torch.float16),
    "shared/gaa/gap": torch.tensor([0.1], dtype=torch.float64),
    "shared/odd/strided": torch.arange(10)[::3],
    "shared/odd/leaf": torch.ones(2, requires_grad=True),
}


def test_tensors_of_every_kind_come_back() -> None:
    blobs = encode(TENSORS)
    assert blobs.keys() == {"weights", "shared/cdpa", "shared/gaa", "shared/odd"}
    back = decode(blobs)
    assert back.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype, name
        assert back[name].shape == tensor.shape, name
        assert torch.equal(back[name], tensor), name


@given(st.lists(st.floats(width=32), max_size=5))
def test_floats_come_back_bit_for_bit(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    assert decode(encode({"weights/a": tensor}))["weights/a"].numpy().tobytes() == tensor.numpy().tobytes()


def test_nothing_travels_too() -> None:
    assert encode({}) == {}
    assert decode({}) == {}


def test_two_names_of_one_storage_travel_as_two() -> None:
    one = torch.ones(3)
    assert decode(encode({"weights/a": one, "weights/b": one, "weights/c": one[:2]})).keys() == {
        "weights/a", "weights/b", "weights/c",
    }  # fmt: skip


def blob(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one_tensor(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


GOOD = encode({"weights/a": torch.arange(4.0)})["weights"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no safetensors",
        b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07pickled\x94.",
        GOOD[:-1],
        GOOD[:20],
        GOOD + b"more",
        struct.pack("<Q", 2**60) + b"{}",
        blob(one_tensor("F32", [2**34], 2**36)),
        blob(one_tensor("F32", [4], 4), b"\0" * 4),
        blob(one_tensor("F32", [-1], 4), b"\0" * 4),
        blob(one_tensor("OBJ", [1], 4), b"\0" * 4),
        blob(one_tensor("F4", [4], 2), b"\0" * 2),
        blob(one_tensor("F32", [0, 2**63], 0)),
        blob(one_tensor("F32", [0, 2**40, 2**40], 0)),
        blob(b"[]"),
        blob(b"\xff\xfe"),
        blob(b"{" * 1000),
    ],
)
def test_what_is_no_safetensors_gets_a_sentence(data: bytes) -> None:
    with pytest.raises(PolyclinicError, match="its record 'shared/cdpa' is not in the safetensors format"):
        decode({"shared/cdpa": data})


def test_a_hundred_thousand_empty_tensors_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took four seconds of the server's time."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    data = blob({f"t{number}": entry for number in range(100_000)})

    def never(_: bytes) -> None:
        raise AssertionError("the file was parsed")

    monkeypatch.setattr("polyclinic.exchange.serialization.load", never)
    with pytest.raises(PolyclinicError, match="100000 tensors, at most 20000 are read"):
        decode({"weights": data})
    with pytest.raises(PolyclinicError, match="its header has 10000001 bytes, at most 10000000"):
        decode({"weights": blob(b" " * (10**7 + 1))})


def test_a_name_twice_is_refused() -> None:
    """Of two tensors with one name, the checks and the model might see different ones."""
    first, second = ({"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n in (0, 1))
    header = f'{{"a": {json.dumps(first)}, "a": {json.dumps(second)}}}'.encode()
    with pytest.raises(PolyclinicError, match="its header has 'a' twice"):
        decode({"weights": blob(header, bytes(8))})


@given(st.binary(max_size=60), st.integers(0, len(GOOD)), st.integers(0, 255))
def test_any_bytes_are_tensors_or_get_a_sentence(garbage: bytes, place: int, byte: int) -> None:
    for data in (garbage, GOOD[:place] + garbage, GOOD[:place] + bytes([byte]) + GOOD[place + 1 :]):
        try:
            decode({"weights": data})
        except PolyclinicError:
            continue
