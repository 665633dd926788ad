"""Messages as Flower's records and back, from hostile senders too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.flower.records import from_records, to_records
from polyclinic.exchange.serialization import encode

BLOB = encode({"weights/a": torch.arange(4.0)})["weights"]


def test_bytes_and_plain_data_come_back() -> None:
    blobs = {"weights": BLOB, "shared/cdpa": bytes(range(256)), "shared/empty": b""}
    about = {"round": 3, "losses": {"ce": 0.5}, "note": "Köln"}
    assert from_records(to_records(blobs, about)) == (blobs, about)


def test_nothing_travels_too() -> None:
    assert from_records(to_records(encode({}), {})) == ({}, {})


def about(text: Any = "{}") -> ConfigRecord:
    return ConfigRecord({"json": text})


def array(stype: str = "safetensors", data: bytes = BLOB) -> Array:
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
