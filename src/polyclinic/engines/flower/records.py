"""Flower's records: one array record for the weights and one for what each component shares, plain data as JSON.

A record holds one array of bytes in the safetensors format. Flower moves every array as an object of its own, with a
request and a signature each, so that the hundred tensors of a small network would take many seconds one by one.
Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.tensor_names import Blobs

_ABOUT, _TENSORS, _FORMAT = "about", "tensors", "safetensors"
_LONGEST_TEXT = 2**26


def to_records(blobs: Mapping[str, bytes], about: Mapping[str, Any]) -> RecordDict:
    """Bytes and plain data as the content of a Flower message."""
    records: dict[str, Any] = {
        group: ArrayRecord({_TENSORS: Array("uint8", (len(blob),), _FORMAT, blob)}) for group, blob in blobs.items()
    }
    return RecordDict({**records, _ABOUT: ConfigRecord({"json": json.dumps(about)})})


def from_records(records: RecordDict, limit: int | None = None) -> tuple[Blobs, dict[str, Any]]:
    """Read what ``to_records`` wrote, from a sender that may have written anything; ``limit`` is in bytes."""
    config = records.config_records.get(_ABOUT)
    text = config.get("json") if config is not None else None
    if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
        raise PolyclinicError(f"it holds no plain data, or more than {_LONGEST_TEXT} letters of it")
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolyclinicError("its plain data are no JSON") from error
    if not isinstance(about, dict):
        raise PolyclinicError("its plain data are no table")
    blobs: Blobs = {}
    for group, record in records.array_records.items():
        if list(record) != [_TENSORS] or record[_TENSORS].stype != _FORMAT:
            raise PolyclinicError(f"its record '{group}' does not hold named tensors")
        blobs[group] = record[_TENSORS].data
    total = sum(map(len, blobs.values()))
    if limit is not None and total > limit:
        raise PolyclinicError(f"it holds {total} bytes of tensors, at most {limit} can belong to this model")
    return blobs, about
