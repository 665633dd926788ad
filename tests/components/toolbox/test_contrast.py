from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.contrast import info_nce, inverse_length, projection_head, unit_rows
from step_support import naive_cosine, same_gradients


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.1, 0.5, 2.0]), st.integers(0, 10**6))
def test_info_nce_is_the_printed_term_in_value_and_gradient(
    n: int, width: int, groups: int, temperature: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, groups, n, width, generator=generator, dtype=torch.float64).requires_grad_()
    terms = []
    for anchors, candidates in zip(first, second, strict=True):
        for i, anchor in enumerate(anchors):
            weights = [torch.exp(naive_cosine(anchor, other) / temperature) for other in candidates]
            terms.append(-torch.log(weights[i] / sum(weights)))
    same_gradients(info_nce(first, second, temperature), sum(terms) / len(terms), first, second)


def test_a_low_temperature_and_long_vectors_overflow_nothing() -> None:
    rows = torch.tensor([[1e3, 0.0], [-1e3, 1.0]], requires_grad=True)
    value = info_nce(rows, -rows.detach(), 1e-3)
    value.backward()
    assert 1000 < value < math.inf
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_rows_of_zeros_have_no_direction_and_no_gradient() -> None:
    rows = torch.zeros(2, 3, requires_grad=True)
    value = info_nce(rows, torch.randn(2, 3), 0.5)
    value.backward()
    torch.testing.assert_close(value.detach(), torch.tensor(math.log(2)))
    assert rows.grad is not None
    assert rows.grad.abs().max() == 0
    assert torch.equal(unit_rows(torch.zeros(1, 2)), torch.zeros(1, 2))
    torch.testing.assert_close(inverse_length(torch.tensor([4.0, 0.0])), torch.tensor([0.5, 0.0]))


def test_a_head_has_two_layers() -> None:
    shapes = [tuple(p.shape) for p in projection_head(6, 4).parameters()]
    assert shapes == [(6, 6), (6,), (4, 6), (4,)]
