"""Have the system read parts of a mapped file before they are used, while something else goes on."""

from __future__ import annotations

import mmap
from itertools import product

import numpy as np
from torch import Tensor

_GAP = 2**16  # bytes; to read what lies between two parts that are closer costs no more than to ask twice


class ReadAhead:
    """A mapped file, asked to be in memory soon where tensors over it are about to be read.

    What nobody asked for is read page by page: left to itself the system reads megabytes around each page, which is
    good for files that are read in order, and for images in random order drives out of memory what is needed.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        if hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_RANDOM)
        self._start = np.frombuffer(mapped, np.uint8).ctypes.data

    def will_need(self, view: Tensor) -> None:
        """Start to read what a view of the file shows; does not wait for it."""
        if not hasattr(self._mapped, "madvise") or not view.numel():
            return
        first = view.data_ptr() - self._start
        for offset, length in spans(view):
            begin = (first + offset) // mmap.PAGESIZE * mmap.PAGESIZE
            self._mapped.madvise(mmap.MADV_WILLNEED, begin, first + offset + length - begin)


def spans(view: Tensor) -> list[tuple[int, int]]:
    """Where a view's bytes lie: ``(offset from its first byte, length)`` of parts that are far from each other."""
    size = view.element_size()
    length, apart = size, list[tuple[int, int]]()
    for count, stride in sorted(zip(view.shape, view.stride(), strict=True), key=lambda axis: axis[1]):
        step = stride * size
        if not apart and step - length <= _GAP:
            length += (count - 1) * step
        else:
            apart.append((count, step))
    steps = product(*(range(0, count * step, step) for count, step in reversed(apart)))
    return [(sum(offsets), length) for offsets in steps]
