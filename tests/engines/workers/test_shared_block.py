"""Shared blocks: what is written is read, by whom, and for how long."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.workers.shared_block import SharedBlock

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool)


@pytest.fixture
def block():  # type: ignore[no-untyped-def]
    block = SharedBlock.create()
    yield block
    block.close()


@given(
    st.dictionaries(
        st.text(max_size=8), st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=5
    ),
    st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3),
)
def test_tensors_of_any_type_and_shape_and_plain_data_come_back(shapes, about) -> None:  # type: ignore[no-untyped-def]
    written = {name: (torch.rand(shape) * 9).to(kind) for name, (kind, shape) in shapes.items()}
    block = SharedBlock.create()
    block.write(written, about)
    for read, plain in (block.read(), block.read(lambda: None)):
        assert plain == about
        assert read.keys() == written.keys()
        for name, tensor in written.items():
            assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(read[name], tensor)
    block.close()


def test_a_tensor_that_is_not_contiguous_is_written_as_it_looks(block: SharedBlock) -> None:
    turned = torch.arange(6.0).view(2, 3).t()
    block.write({"a": turned}, {})
    assert torch.equal(block.read()[0]["a"], turned)


def test_a_block_grows_and_earlier_tensors_stay_readable(block: SharedBlock) -> None:
    block.write({"a": torch.ones(3)}, {})
    first = block.read(lambda: None)[0]["a"]
    block.write({"a": torch.zeros(10**6)}, {"more": 1})
    assert block.read()[0]["a"].shape == (10**6,)
    assert first.shape == (3,)
    block.write({}, {})
    assert block.read() == ({}, {})


def test_the_block_is_free_when_the_last_tensor_is_gone(block: SharedBlock) -> None:
    block.write({"a": torch.ones(3), "b": torch.ones(2)}, {})
    released: list[int] = []
    tensors, _ = block.read(lambda: released.append(1))
    kept = tensors["b"][1:]
    del tensors
    assert not released
    del kept
    assert released == [1]


def test_private_tensors_can_be_changed_without_a_trace(block: SharedBlock) -> None:
    block.write({"a": torch.ones(3)}, {})
    tensors, _ = block.read()
    tensors["a"].zero_()
    assert torch.equal(block.read()[0]["a"], torch.ones(3))


def test_another_process_sees_what_is_written(block: SharedBlock) -> None:
    block.write({"a": torch.arange(4)}, {})
    child = os.fork()
    if child == 0:
        tensors, _ = SharedBlock(os.dup(block.descriptor)).read(lambda: None)
        tensors["a"].add_(10)
        os._exit(0)
    os.waitpid(child, 0)
    assert block.read()[0]["a"].tolist() == [10, 11, 12, 13]


def test_full_memory_is_a_sentence(block: SharedBlock, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PolyclinicError, match=r"shared memory cannot be had .* lower engine.workers, and go on with"):
        block.write({"a": torch.ones(10)}, {})
