"""Memory that two processes see: one message at a time, named tensors and plain data, without a copy through a pipe.

A block is a file of the kernel's memory that has no name (``memfd``), so that a process that is killed leaves nothing
behind, and the size of ``/dev/shm`` does not matter. The other process gets it as a file descriptor.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors

_ALIGNMENT = 64  # bytes; of every tensor, so that any type fits and vector instructions are fast
_LENGTH = 8  # bytes at the start: the length of the description


class SharedBlock:
    """Holds one message, which the writer replaces by the next; both sides agree elsewhere on whose turn it is."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapping: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedBlock:
        """A new, empty block."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("polyclinic", os.MFD_CLOEXEC))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def close(self) -> None:
        """Give the descriptor back; the memory lives until the last tensor that was read from it is gone."""
        os.close(self.descriptor)
        self._mapping = None

    def write(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Replace the message; the block grows to its size."""
        layout: list[tuple[str, str, list[int], int]] = []
        end = 0
        for name, tensor in tensors.items():
            layout.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end))
            end = _aligned(end + tensor.numel() * tensor.element_size())
        description = json.dumps({"about": about, "tensors": layout}).encode()
        start = _aligned(_LENGTH + len(description))
        self._reserve(start + end)
        mapping = self._mapped()
        mapping[:_LENGTH] = len(description).to_bytes(_LENGTH, "little")
        mapping[_LENGTH : _LENGTH + len(description)] = description
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
        for (_, _, _, offset), tensor in zip(layout, tensors.values(), strict=True):
            _view(memory, start + offset, tensor.dtype, tensor.shape).copy_(tensor.detach())

    def read(self, when_unused: Callable[[], object] | None = None) -> tuple[Tensors, dict[str, Any]]:
        """The message: tensors that lie in the block itself, and plain data.

        ``when_unused`` is called once nobody holds any of the tensors, so that the block may be written again. Without
        it the tensors are private: whoever changes one changes nothing in the block.
        """
        shared = self._mapped() if when_unused else self._private()
        length = int.from_bytes(shared[:_LENGTH], "little")
        description = json.loads(shared[_LENGTH : _LENGTH + length])
        view = memoryview(shared)
        if when_unused:
            weakref.finalize(view, when_unused)
        memory = torch.frombuffer(view, dtype=torch.uint8)
        start = _aligned(_LENGTH + length)
        tensors = {
            name: _view(memory, start + offset, getattr(torch, kind), shape)
            for name, kind, shape, offset in description["tensors"]
        }
        return tensors, description["about"]

    def _reserve(self, size: int) -> None:
        if size <= os.fstat(self.descriptor).st_size:
            return
        self._mapping = None
        try:
            if hasattr(os, "posix_fallocate"):
                # Here a full memory is an error; at the first write to a page it would be the end of the process.
                os.posix_fallocate(self.descriptor, 0, size)
            else:
                os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise PolyclinicError(
                f"{size / 1e6:.0f} MB of shared memory cannot be had ({error.strerror}); free some memory or lower "
                "engine.workers, and go on with --resume."
            ) from error

    def _mapped(self) -> mmap.mmap:
        size = os.fstat(self.descriptor).st_size
        if self._mapping is None or len(self._mapping) != size:
            self._mapping = mmap.mmap(self.descriptor, size)
        return self._mapping

    def _private(self) -> mmap.mmap:
        return mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size, access=mmap.ACCESS_COPY)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _view(memory: Tensor, start: int, kind: torch.dtype, shape: Sequence[int]) -> Tensor:
    return memory[start : start + prod(shape) * kind.itemsize].view(kind).view(tuple(shape))
