"""A limit on the bytes of the arrays in a message that is being unpacked.

Flower sends equal pieces of an array once and names them wherever they stand. A piece of 5 MB that is named a thousand
times is a message of a few kilobytes more, and 5 GB when it is unpacked, before anybody could look at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from json import loads

from flwr.app import Array
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

from polyclinic.core.errors import PolyclinicError

_LARGEST_MESSAGE = 2**31
_left: ContextVar[list[int] | None] = ContextVar("bytes that the arrays of this message may still have", default=None)


class _BoundedArray(Array):
    """What Flower unpacks in place of an ``Array``; gives back an ordinary one."""

    @classmethod
    def inflate(cls, object_content: bytes, children: dict[str, InflatableObject] | None = None) -> Array:
        names = get_object_children_ids_from_object_content(object_content)
        order = loads(get_object_body(object_content, Array).decode("utf-8"))["arraychunk_ids"]
        pieces = [(children or {}).get(name) for name in names]
        if not all(isinstance(piece, ArrayChunk) for piece in pieces):
            # Flower would take anything that has bytes: of arrays of arrays each level may be a hundred times as large.
            raise PolyclinicError("one of its arrays is made of something else than pieces of bytes")
        sizes = [len(piece.data) for piece in pieces if isinstance(piece, ArrayChunk)]
        left = _left.get()
        left = [_LARGEST_MESSAGE] if left is None else left
        left[0] -= sum(sizes[number] for number in order)
        if left[0] < 0:
            raise PolyclinicError("its arrays are larger when they are unpacked than a message may be")
        return Array.inflate(object_content, children)


inflatable_class_registry[Array.__qualname__] = _BoundedArray


@contextmanager
def bounded_arrays(limit: int) -> Iterator[None]:
    """Within it, the arrays that Flower unpacks in this thread may have ``limit`` bytes together."""
    token = _left.set([limit])
    try:
        yield
    finally:
        _left.reset(token)
