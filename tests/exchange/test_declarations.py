from __future__ import annotations

import pytest
import torch

from polyclinic.exchange.declarations import Shared


@pytest.mark.parametrize(
    ("shape", "tensor", "accepted"),
    [
        ((2, 3), torch.zeros(2, 3), True),
        ((2, 3), torch.zeros(3, 2), False),
        ((2, 3), torch.zeros(2, 3, 1), False),
        ((2, 3), torch.zeros(2), False),
        ((2, 3), torch.zeros(2, 3, dtype=torch.float64), False),
        (("rows", 3), torch.zeros(7, 3), True),
        (("rows", 3), torch.zeros(0, 3), True),
        (("rows", 3), torch.zeros(7, 4), False),
        (("rows", "columns"), torch.zeros(7), False),
        ((), torch.zeros(()), True),
        ((), torch.zeros(1), False),
    ],
)
def test_a_tensor_must_have_the_type_the_rank_and_every_declared_size(
    shape: tuple[int | str, ...], tensor: torch.Tensor, accepted: bool
) -> None:
    assert Shared("x", shape, "numbers").accepts(tensor) is accepted


def test_integers_are_accepted_where_they_are_declared() -> None:
    counts = Shared("counts", ("rows",), "pixels of each class", torch.int64)
    assert counts.accepts(torch.zeros(4, dtype=torch.int64))
    assert not counts.accepts(torch.zeros(4))
    assert not counts.accepts(torch.zeros(4, dtype=torch.int32))
