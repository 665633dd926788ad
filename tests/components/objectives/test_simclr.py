from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.objectives.simclr import nt_xent
from polyclinic.federation.workspace import build_workspace
from step_support import component_of, naive_cosine, same_gradients, site_of, step_of
from support import tiny_recipe, tiny_task


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.1, 0.5, 2.0]), st.integers(0, 10**6))
def test_equation_1_over_all_views_in_value_and_gradient(batch: int, width: int, tau: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, batch, width, generator=generator, dtype=torch.float64).requires_grad_()
    views, terms = [*first, *second], []
    for k, view in enumerate(views):
        other = (k + batch) % (2 * batch)
        weights = {j: torch.exp(naive_cosine(view, views[j]) / tau) for j in range(2 * batch) if j != k}
        terms.append(-torch.log(weights[other] / sum(weights.values())))
    same_gradients(nt_xent(first, second, tau), sum(terms) / len(terms), first, second)


def test_long_vectors_and_a_low_temperature_overflow_nothing() -> None:
    rows = (1e3 * torch.eye(3)).requires_grad_()
    value = nt_xent(rows, rows.detach().roll(1, 0), 1e-3)
    value.backward()
    assert 900 < value < math.inf
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_the_head_is_trained_and_travels() -> None:
    workspace = build_workspace(tiny_recipe("fedsimclr(projection=5)"), tiny_task())
    names = {name for name in workspace.exchanged if name.startswith("extras.simclr.")}
    assert len(names) == 4
    (value,) = component_of(workspace, "simclr").loss(step_of(site_of(workspace))).values()
    value.backward()
    trained = dict(workspace.network.named_parameters())
    assert all(trained[name].grad is not None for name in names)
    assert any(trained[name].grad.any() for name in names)


def test_strength_zero_and_no_projection_install_nothing() -> None:
    for expression in ("fedsimclr(gamma=0)", "fedsimclr(projection=0)"):
        workspace = build_workspace(tiny_recipe(expression), tiny_task())
        assert not workspace.network.extras
        assert bool(component_of(workspace, "simclr").loss(step_of(site_of(workspace)))) is ("gamma" not in expression)
