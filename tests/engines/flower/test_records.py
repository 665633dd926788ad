from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.flower.records import from_records, to_records
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
    blobs, about = from_records(to_records(encode(TENSORS), {"round": 3, "losses": {"ce": 0.5}, "note": "Köln"}))
    assert about == {"round": 3, "losses": {"ce": 0.5}, "note": "Köln"}
    assert blobs.keys() == {"weights", "shared/cdpa", "shared/gaa", "shared/odd"}
    back = decode(blobs)
    assert back.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype, name
        assert back[name].shape == tensor.shape, name
        assert torch.equal(back[name], tensor), name


def test_two_names_of_one_storage_travel_as_two() -> None:
    one = torch.ones(3)
    assert decode(encode({"weights/a": one, "weights/b": one, "weights/c": one[:2]})).keys() == {
        "weights/a", "weights/b", "weights/c",
    }  # fmt: skip


def test_nothing_travels_too() -> None:
    assert from_records(to_records(encode({}), {})) == ({}, {})
    assert decode({}) == {}


@given(st.lists(st.floats(width=32), max_size=5))
def test_floats_come_back_bit_for_bit(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    back = decode(from_records(to_records(encode({"weights/a": tensor}), {}))[0])["weights/a"]
    assert back.numpy().tobytes() == tensor.numpy().tobytes()


def blob(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
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
        blob(one("F32", [2**34], 2**36)),
        blob(one("F32", [4], 4), b"\0" * 4),
        blob(one("F32", [-1], 4), b"\0" * 4),
        blob(one("OBJ", [1], 4), b"\0" * 4),
        blob(one("F4", [4], 2), b"\0" * 2),
        blob(one("F32", [0, 2**63], 0)),
        blob(one("F32", [0, 2**40, 2**40], 0)),
        blob(b"[]"),
        blob(b"\xff\xfe"),
        blob(b"{" * 1000),
    ],
)
def test_what_is_no_safetensors_gets_a_sentence(data: bytes) -> None:
    with pytest.raises(PolyclinicError, match="its record 'shared/cdpa' is not in the safetensors format"):
        decode({"shared/cdpa": data})


@given(st.binary(max_size=60), st.integers(0, len(GOOD)), st.integers(0, 255))
def test_any_bytes_are_tensors_or_get_a_sentence(garbage: bytes, place: int, byte: int) -> None:
    for data in (garbage, GOOD[:place] + garbage, GOOD[:place] + bytes([byte]) + GOOD[place + 1 :]):
        try:
            decode({"weights": data})
        except PolyclinicError:
            continue


def about(text: Any = "{}") -> ConfigRecord:
    return ConfigRecord({"json": text})


def array(stype: str = "safetensors", data: bytes = GOOD) -> Array:
    return Array("uint8", (len(data),), stype, data)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({}, "holds no plain data"),
        ({"about": ArrayRecord({"tensors": array()})}, "holds no plain data"),
        ({"about": MetricRecord({"json": 1})}, "holds no plain data"),
        ({"about": ConfigRecord({})}, "holds no plain data"),
        ({"about": about(5)}, "holds no plain data"),
        ({"about": about(b"{}")}, "holds no plain data"),
        ({"about": about("no JSON")}, "no JSON"),
        ({"about": about("[" * 100_000)}, "no JSON"),
        ({"about": about('{"a": ' * 100_000)}, "no JSON"),
        ({"about": about("9" * 5000)}, "no JSON"),
        ({"about": about("[1, 2]")}, "no table"),
        ({"about": about("null")}, "no table"),
        ({"about": about(), "weights": ArrayRecord({"tensors": array("numpy.ndarray")})}, "record 'weights' does not"),
        ({"about": about(), "weights": ArrayRecord({"tensors": array(), "more": array()})}, "record 'weights' does"),
        ({"about": about(), "weights": ArrayRecord({"w": array()})}, "record 'weights' does not hold named tensors"),
        ({"about": about(), "weights": ArrayRecord([np.ones(2)])}, "record 'weights' does not hold named tensors"),
        ({"about": about(), "weights": ArrayRecord({})}, "record 'weights' does not hold named tensors"),
    ],
)
def test_what_is_no_message_of_ours_gets_a_sentence(records: dict[str, Any], words: str) -> None:
    with pytest.raises(PolyclinicError, match=words):
        from_records(RecordDict(records))


def test_plain_data_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyclinic.engines.flower.records._LONGEST_TEXT", 20)
    from_records(to_records({}, {"a": "b" * 8}))
    with pytest.raises(PolyclinicError, match="more than 20 letters"):
        from_records(to_records({}, {"a": "b" * 20}))


def test_tensors_have_a_limit_over_all_records() -> None:
    records = to_records({"weights": b"x" * 60, "shared/a": b"y" * 41}, {})
    assert from_records(records, 101)[0] == {"weights": b"x" * 60, "shared/a": b"y" * 41}
    with pytest.raises(PolyclinicError, match="it holds 101 bytes of tensors, at most 100"):
        from_records(records, 100)
