from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.objectives.swav import sinkhorn, swapped_prediction
from polyclinic.federation.workspace import build_workspace
from step_support import component_of, same_gradients, site_of, step_of
from support import final_tensors, tiny_recipe, tiny_server, tiny_task


def naive_codes(scores: list[list[float]], epsilon: float, iterations: int) -> list[list[float]]:
    """Algorithm 1 of the paper's appendix: totals of prototypes, then of rows, each made equal in turns."""
    codes = [[math.exp(value / epsilon) for value in row] for row in scores]
    total = sum(map(sum, codes))
    codes = [[value / total for value in row] for row in codes]
    for _ in range(iterations):
        columns = [sum(row[k] for row in codes) for k in range(len(codes[0]))]
        codes = [[value / columns[k] / len(columns) for k, value in enumerate(row)] for row in codes]
        codes = [[value / sum(row) / len(codes) for value in row] for row in codes]
    return [[value * len(codes) for value in row] for row in codes]


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(2, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_codes_are_those_of_the_algorithm(rows: int, prototypes: int, iterations: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.rand(2, rows, prototypes, generator=generator, dtype=torch.float64) - 1
    ours = sinkhorn(scores, 0.05, iterations)
    for own, view in zip(ours, scores, strict=True):
        torch.testing.assert_close(own, torch.tensor(naive_codes(view.tolist(), 0.05, iterations)).double())


def test_codes_of_scores_of_any_size_are_finite_and_share_the_prototypes() -> None:
    codes = sinkhorn(1e3 * torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), 0.05, 3)
    assert codes.isfinite().all()
    even = sinkhorn(torch.rand(64, 4, generator=torch.Generator().manual_seed(0)), 0.5, 30)
    torch.testing.assert_close(even.sum(0), torch.full((4,), 16.0), rtol=1e-3, atol=0)


def test_each_view_is_predicted_from_the_other() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    codes = torch.rand(2, 3, 4, generator=generator, dtype=torch.float64)
    terms = []
    for image in range(3):
        for view in (0, 1):
            exponentials = [torch.exp(score / 0.1) for score in scores[view, image]]
            shares = [value / sum(exponentials) for value in exponentials]
            terms.append(-sum(q * torch.log(p) for q, p in zip(codes[1 - view, image], shares, strict=True)))
    same_gradients(swapped_prediction(scores, codes, 0.1), sum(terms) / len(terms), scores)


def test_prototypes_rest_in_the_first_round_and_travel() -> None:
    workspace = build_workspace(tiny_recipe("fedswav(prototypes=6, projection=5)"), tiny_task())
    weight = workspace.network.extras["swav_prototypes"].weight
    assert tuple(weight.shape) == (6, 5)
    assert "extras.swav_prototypes.weight" in workspace.exchanged
    for number, moves in ((0, False), (1, True)):
        weight.grad = None
        (value,) = component_of(workspace, "swav").loss(step_of(site_of(workspace), round_number=number)).values()
        value.backward()
        assert (weight.grad is not None) is moves


def test_the_queue_takes_part_in_the_codes_and_holds_the_newest() -> None:
    workspace = build_workspace(tiny_recipe("fedswav(queue=5, projection=4)"), tiny_task())
    component, site = component_of(workspace, "swav"), site_of(workspace)
    seen, values = [], []
    for rows in (2, 1, 3, 3):
        step = step_of(site, rows)
        values.append(component.loss(step)["swav"])
        component.loss(step)  # a second pass adds nothing
        seen.append(component._newest.clone())  # type: ignore[attr-defined]
        component.after_step(step)
    torch.testing.assert_close(component.state["queue"], torch.cat(seen[::-1], 1)[:, :5])
    torch.testing.assert_close(component.state["queue"].norm(dim=2), torch.ones(2, 5))
    assert values[2] != values[3], "the same batch, with another queue"
    component.after_step(step)
    assert component.state["queue"].shape == (2, 5, 4)


def test_a_single_image_waits_for_a_queue() -> None:
    workspace = build_workspace(tiny_recipe("fedswav", training={"batch_size": 1}), tiny_task())
    site = site_of(workspace)
    component = component_of(workspace, "swav")
    assert not component.warnings()
    assert component.loss(step_of(site, rows=1)) == {}
    queue = torch.nn.functional.normalize(torch.randn(2, 3, 128), dim=2)
    component = component_of(workspace, "swav", {"queue": queue})
    assert component.loss(step_of(site, rows=1))["swav"].isfinite()
    without = build_workspace(tiny_recipe("fedswav(queue=0)", training={"batch_size": 1}), tiny_task())
    assert len(component_of(without, "swav").warnings()) == 1


@pytest.mark.parametrize("queue", [0, 4])
def test_the_queue_stays_at_the_site(queue: int, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(f"fedswav(queue={queue}, projection=3)"), sizes={"north": 3})
    server.round()
    kept = {name for name in final_tensors(server) if "/swav/" in name}
    assert kept == ({"north/swav/queue"} if queue else set())
