"""One file of the cache: large blocks at places that are known before a byte is written, then an index.

A file is safetensors: a header of 4096 bytes, the blocks, and the index as a block of bytes that hold JSON. Small files
are read and their SHA-256 is checked; large ones are mapped and never copied, and on the disk before they are named.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from polyclinic.core.locks import shared_lock
from polyclinic.data.read_ahead import ReadAhead

_HEADER = 4096  # bytes, so that blocks begin with a page
_SMALL = 2**20  # bytes; a thousand small sites must not need a thousand open files
_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "U8": np.dtype("u1"), "I32": np.dtype("<i4")}


class CacheUnusableError(Exception):
    """The cache cannot be read or written; the text says why."""


@contextmanager
def unusable_if_it_fails() -> Iterator[None]:
    """Turn errors of the file system into ``CacheUnusableError``: those of image files look the same."""
    try:
        yield
    except OSError as error:
        raise CacheUnusableError(error.strerror or str(error)) from error


@dataclass(frozen=True)
class Block:
    """A block's type (``F32``, ``U8`` or ``I32``) and shape."""

    kind: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * _TYPES[self.kind].itemsize


class Layout:
    """The blocks of an entry by name, one behind the other."""

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self.blocks = dict(blocks)
        self.places: dict[str, int] = {}
        self.bytes = 0
        for name, block in self.blocks.items():
            self.places[name] = self.bytes
            self.bytes += block.bytes

    @property
    def file_bytes(self) -> int:
        """The size of its file, but for the index, which is small."""
        return _HEADER + self.bytes


class Target(Protocol):
    """Where blocks are written, by several processes at a time."""

    def write(self, place: int, values: npt.NDArray[Any]) -> None:
        """Write an array at a place, in bytes from the first block's beginning."""
        ...


@dataclass(frozen=True)
class Entry:
    """The blocks of an entry as tensors, never to be written to, its index, and what reads them ahead of their use."""

    tensors: dict[str, Tensor]
    index: Any
    ahead: ReadAhead | None = None


class FileTarget:
    """An open file that becomes an entry."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self.descriptor, self.layout = descriptor, layout
        with unusable_if_it_fails():
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, layout.file_bytes)

    def write(self, place: int, values: npt.NDArray[Any]) -> None:
        """Write at a place; other than through a mapping a full disk is an error here, and not the process's end."""
        self._write(_HEADER + place, _plain_bytes(values))

    def finish(self, index: Any) -> None:
        """Write index and header, and have a file that is too large for a checksum on the disk."""
        text = json.dumps(index).encode()
        self._write(self.layout.file_bytes, memoryview(text))
        end = self.layout.file_bytes + len(text)
        small = end <= _SMALL
        digest = hashlib.sha256(os.pread(self.descriptor, end - _HEADER, _HEADER)).hexdigest() if small else ""
        self._write(0, memoryview(_header(self.layout, len(text), digest)))
        if not small:
            with unusable_if_it_fails():
                os.fsync(self.descriptor)

    def _write(self, place: int, data: memoryview) -> None:
        with unusable_if_it_fails():
            while data:
                written = os.pwrite(self.descriptor, data, place)
                place, data = place + written, data[written:]


class MemoryTarget:
    """Memory that processes share, for what must not be on a disk."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.memory = mmap.mmap(-1, max(layout.bytes, 1))

    def write(self, place: int, values: npt.NDArray[Any]) -> None:
        """Write at a place."""
        data = _plain_bytes(values)
        self.memory[place : place + len(data)] = data

    def entry(self, index: Any) -> Entry:
        """What was written, as an entry that lives as long as its tensors."""
        flat = torch.frombuffer(self.memory, dtype=torch.uint8)
        return Entry(_tensors(flat, self.layout), json.loads(json.dumps(index)))


def read_entry(path: Path) -> Entry:
    """Map a large entry, read a small one. Raises ``ValueError`` for one that is damaged, ``OSError`` for none.

    A mapped entry holds a shared lock on its file until the last tensor is gone.
    """
    with path.open("rb") as file:
        shared_lock(file.fileno())
        os.utime(file.fileno())  # the least recently used make room
        layout, index_bytes, digest = _read_header(file.read(_HEADER))
        size = layout.file_bytes + index_bytes
        if os.fstat(file.fileno()).st_size != size:
            raise ValueError(f"it has {os.fstat(file.fileno()).st_size} bytes, expected {size}")
        if size > _SMALL:
            # The mapping keeps a descriptor of its own, and the lock with it.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            data, ahead = mapped_bytes(mapped), ReadAhead(mapped)
            index = mapped[layout.file_bytes :]
        else:
            content, ahead = bytearray(file.read()), None
            if hashlib.sha256(content).hexdigest() != digest:
                raise ValueError("its checksum is wrong")
            data, index = torch.frombuffer(content, dtype=torch.uint8), bytes(content[layout.bytes :])
            return Entry(_tensors(data, layout), json.loads(index))
    return Entry(_tensors(data[_HEADER:], layout), json.loads(index), ahead)


def _plain_bytes(values: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def mapped_bytes(mapped: mmap.mmap) -> Tensor:
    """A mapped file as a tensor ``(bytes,)`` that must not be written to."""
    with warnings.catch_warnings():
        # Read-only on purpose: a private writable mapping larger than memory may be refused by the kernel.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.frombuffer(mapped, np.uint8))


def _tensors(data: Tensor, layout: Layout) -> dict[str, Tensor]:
    """The blocks in ``data (bytes,)``, whose beginning is the first block's."""
    tensors = {}
    for name, block in layout.blocks.items():
        start = layout.places[name]
        kind = torch.from_numpy(np.empty(0, _TYPES[block.kind])).dtype
        tensors[name] = data[start : start + block.bytes].view(kind).view(block.shape)
    return tensors


def _header(layout: Layout, index_bytes: int, digest: str) -> bytes:
    blocks = {**layout.blocks, "index": Block("U8", (index_bytes,))}
    places = {**layout.places, "index": layout.bytes}
    table: dict[str, Any] = {
        name: {"dtype": block.kind, "shape": block.shape, "data_offsets": [places[name], places[name] + block.bytes]}
        for name, block in blocks.items()
    }
    text = json.dumps({"__metadata__": {"sha256": digest}, **table}).encode()
    return struct.pack("<Q", _HEADER - 8) + text.ljust(_HEADER - 8)


def _read_header(data: bytes) -> tuple[Layout, int, str]:
    """Blocks, bytes of the index, and the checksum; the places of blocks follow from their shapes."""
    try:
        table = json.loads(data[8:])
        digest = table.pop("__metadata__")["sha256"]
        blocks = {name: Block(about["dtype"], tuple(about["shape"])) for name, about in table.items()}
        index = blocks.pop("index")
        return Layout(blocks), index.bytes, digest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its header cannot be read") from error
