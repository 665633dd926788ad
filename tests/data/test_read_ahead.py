"""What is read ahead covers a view's bytes, and little else."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.data import read_ahead
from polyclinic.data.cache_entry import mapped_bytes
from polyclinic.data.read_ahead import ReadAhead, spans


@given(st.data())
def test_spans_cover_a_box_and_leave_far_gaps_out(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4), label="shape"))
    box = tuple(
        slice(start, data.draw(st.integers(start + 1, size)))
        for size in shape
        for start in [data.draw(st.integers(0, size - 1))]
    )
    whole = torch.arange(int(np.prod(shape)), dtype=torch.int32).view(shape)
    view = whole[box]
    gap = data.draw(st.sampled_from([0, 8, 1000]), label="gap")
    read_ahead._GAP, before = gap, read_ahead._GAP
    try:
        found = spans(view)
    finally:
        read_ahead._GAP = before
    covered = {byte for start, length in found for byte in range(start, start + length)}
    first = int(view.flatten()[0])
    wanted = {4 * (int(value) - first) + byte for value in view.flatten() for byte in range(4)}
    assert wanted <= covered
    assert max(covered) == max(wanted)
    if gap == 0:
        assert covered == wanted
    if gap == 1000:
        assert len(found) == 1


def test_a_mapping_is_advised_page_by_page(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(10 * mmap.PAGESIZE))
    with (tmp_path / "x").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = mapped_bytes(mapped)
    advised: list[tuple[int, int]] = []

    class Spy:
        def madvise(self, option: int, start: int, length: int) -> None:
            assert option == mmap.MADV_WILLNEED
            mapped.madvise(option, start, length)  # raises where the range is none of the mapping's
            advised.append((start, length))

    ahead = ReadAhead(mapped)
    ahead._mapped = Spy()  # type: ignore[assignment]
    ahead.will_need(whole[mmap.PAGESIZE + 5 : 2 * mmap.PAGESIZE + 7])
    assert advised == [(mmap.PAGESIZE, mmap.PAGESIZE + 7)]
    ahead.will_need(whole[:0])
    assert len(advised) == 1
