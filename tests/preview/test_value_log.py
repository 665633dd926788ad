"""Programs that read their tensors, once with numbers and once without."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyclinic.preview.value_log import UnreadableValueError, ValueLog, without_numbers

Program = Callable[[Tensor], object]


def both(program: Program, small: Tensor, large: Tensor) -> tuple[object, object, ValueLog]:
    """What a program gives for a small tensor, and for the shape of a large one."""
    log = ValueLog()
    with log.recording():
        first = program(small)
    with log.replaying():
        second = program(large)
    return first, second, log


@pytest.mark.parametrize(
    "program",
    [
        lambda t: float(t.sum()),
        lambda t: (int(t.argmax()), bool((t > 3).any())),
        lambda t: t.reshape(2, -1).sum(1).tolist(),
        lambda t: t.reshape(-1, 2, 2).sum(0).tolist(),
        lambda t: t[:3].numpy().tolist(),
        lambda t: np.asarray(t[:3]).tolist(),
        lambda t: torch.equal(t, t + 1),
        lambda t: [float(value) for value in t[:3].unbind()],
    ],
)
def test_values_are_read_again(program: Program) -> None:
    first, second, log = both(program, torch.arange(8.0), torch.zeros(800))
    assert first == second
    assert not log.by_value


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (lambda t: (t > 3).nonzero(), (50, 1)),
        (lambda t: t[t > 3], (50,)),
        (lambda t: t.masked_select(t > 3), (50,)),
        (lambda t: torch.stack([t, t], 1)[t > 3], (50, 2)),
        (lambda t: t.unique(), (100,)),
        (lambda t: t.unique(return_inverse=True)[1], (100,)),
        (lambda t: t.long().bincount(), (8,)),
        (lambda t: F.one_hot(t.long()), (100, 8)),
        (lambda t: F.one_hot(t.long(), 9), (100, 9)),
        (lambda t: torch.arange(len(t)).repeat_interleave((t > 3).long()), (50,)),
        (lambda t: torch.from_numpy(t.numpy()), (100,)),
    ],
)
def test_sizes_that_depend_on_values_grow_with_the_tensor(program: Program, shape: tuple[int, ...]) -> None:
    first, second, log = both(program, torch.arange(8.0), torch.zeros(100))
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    assert tuple(second.shape) == shape
    assert second.dtype == first.dtype
    assert log.by_value or "one_hot" in str(shape) or len(shape) == 2


def test_a_program_that_reads_something_else_is_stopped() -> None:
    log = ValueLog()
    with log.recording():
        float(torch.ones(3).sum())
    with pytest.raises(UnreadableValueError, match=r"asks for aten\.equal"), log.replaying():
        torch.equal(torch.ones(3), torch.ones(3))
    log = ValueLog()
    with pytest.raises(UnreadableValueError, match="asked for nothing"), log.replaying():
        float(torch.ones(3).sum())


def test_a_program_that_reads_less_is_stopped() -> None:
    log = ValueLog()
    with log.recording():
        float(torch.ones(3).sum())
    with pytest.raises(UnreadableValueError, match="reads 1 values less"), log.replaying():
        torch.ones(3).sum()


def test_a_network_without_numbers_trains_and_is_copied_without_memory() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    log = ValueLog()
    log.strip_numbers(network)
    with log.replaying():
        twin = copy.deepcopy(network)
        network(torch.empty(1, 1, 10**5, 10**5)).sum().backward()
    assert network[0].weight.grad is not None
    assert network[0].weight.grad.shape == (4, 1, 3, 3)
    assert {name: tuple(t.shape) for name, t in twin.state_dict().items()} == {
        name: tuple(t.shape) for name, t in network.state_dict().items()
    }


def test_no_code_gets_at_the_bytes_of_a_tensor_without_numbers() -> None:
    with without_numbers():
        tensor = torch.ones(3)
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        tensor.data_ptr()
