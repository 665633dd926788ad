"""Arrays of a message that Flower unpacks: honest ones come out as they went in, a message that swells does not."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content

from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.flower.bounded_arrays import bounded_arrays

SIZE = 12 * 2**20


def sent(count: int) -> tuple[str, dict[str, bytes]]:
    """Records with ``count`` arrays of zeros, of which Flower sends one piece for all."""
    arrays = {f"a{n}": Array("uint8", (SIZE + n,), "safetensors", bytes(SIZE + n)) for n in range(count)}
    records = RecordDict({"weights": ArrayRecord(arrays)})
    contents = {name: each.deflate() for name, each in get_all_nested_objects(records).items()}
    assert sum(map(len, contents.values())) < SIZE
    return records.object_id, contents


def test_arrays_within_the_limit_come_out_as_they_went_in() -> None:
    with bounded_arrays(2 * SIZE + 1):
        records = inflate_object_from_contents(*sent(2))
    assert isinstance(records, RecordDict)
    assert [len(array.data) for array in records.array_records["weights"].values()] == [SIZE, SIZE + 1]
    assert type(records.array_records["weights"]["a0"]) is Array


def test_the_limit_is_for_all_arrays_of_a_message_together() -> None:
    with bounded_arrays(2 * SIZE), pytest.raises(PolyclinicError, match="larger when they are unpacked"):
        inflate_object_from_contents(*sent(2))
    with bounded_arrays(2 * SIZE):
        inflate_object_from_contents(*sent(1))
    with bounded_arrays(2 * SIZE):
        inflate_object_from_contents(*sent(1))


def test_without_a_limit_of_its_own_a_message_has_flower_s_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyclinic.engines.flower.bounded_arrays._LARGEST_MESSAGE", SIZE - 1)
    with pytest.raises(PolyclinicError):
        inflate_object_from_contents(*sent(1))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_array_of_arrays_is_refused(depth: int) -> None:
    """Each level names the one below a hundred times: a message of 2 kB would be a gigabyte."""
    contents: dict[str, bytes] = {}

    def put(kind: str, children: list[str], body: bytes) -> str:
        written = f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body
        name = sha256(written).hexdigest()
        contents[name] = written
        return name

    about = {"dtype": "uint8", "shape": [1], "stype": "safetensors", "arraychunk_ids": [0] * 100}
    level = put("ArrayChunk", [], b"x" * 1000)
    for _ in range(depth + 1):
        level = put("Array", [level], json.dumps(about).encode())
    for content in contents.values():
        validate_object_content(content)
    with bounded_arrays(2**20), pytest.raises(PolyclinicError, match="something else than pieces"):
        inflate_object_from_contents(level, dict(contents))
