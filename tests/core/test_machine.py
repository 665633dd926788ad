from __future__ import annotations

import sys

import pytest
import torch

from polyclinic.core.machine import keep_freed_memory, prepare_process


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="page faults are counted on Linux only")
def test_a_block_that_was_freed_is_taken_again_without_page_faults() -> None:
    import resource

    if not keep_freed_memory():
        pytest.skip("this C library has no mallopt")

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.zeros(8 * 2**20).add_(1)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    assert faults() < 8 * 2**20 * 4 / 4096  # one block's pages, where ten blocks were taken


def test_threads_are_what_was_asked_for() -> None:
    before = torch.get_num_threads()
    prepare_process(2)
    assert torch.get_num_threads() == 2
    prepare_process(before)
