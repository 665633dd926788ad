from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.base import Context
from polyclinic.components.objectives.fedrcl import FedRcl, contrast, cosines_between, penalty
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe, tiny_site, tiny_task


def pairs_of(classes: Tensor) -> tuple[Tensor, Tensor]:
    alike = classes[:, None] == classes
    return alike & ~torch.eye(len(classes), dtype=torch.bool), ~alike


def naive(rows: Tensor, classes: Tensor, tau: float, k: int, n: int, threshold: float, hardest: bool) -> list[Tensor]:
    """Equations 1 and 2, anchor by anchor."""
    contrasts, penalties = [], []
    units = [row / row.square().sum().sqrt() for row in rows]
    for i, anchor in enumerate(units):
        same = [(anchor * units[j]).sum() for j in range(len(rows)) if j != i and classes[j] == classes[i]]
        other = [(anchor * units[j]).sum() for j in range(len(rows)) if classes[j] != classes[i]]
        same, other = sorted(same, key=Tensor.item), sorted(other, key=Tensor.item, reverse=True)
        if same and other:
            each = []
            for positive in same[:k]:
                below = torch.exp(positive / tau) + sum(torch.exp(negative / tau) for negative in other[:n])
                each.append(-torch.log(torch.exp(positive / tau) / below))
            contrasts.append(sum(each) / len(each))
        if same:
            close = [s for s in (same[:k] if hardest else same) if s > threshold]
            penalties.append(torch.log(1 + sum((torch.exp((s - 1) / tau) for s in close), rows.new_zeros(()))))
    zero = 0 * rows.sum()
    return [zero + (sum(found) / len(found) if found else 0) for found in (contrasts, penalties)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=7),
    st.sampled_from([0.1, 0.5]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_values_and_gradients_are_those_of_the_equations(
    labels: list[int], tau: float, positives: int, negatives: int, hardest: bool, seed: int
) -> None:
    classes, generator = torch.tensor(labels), torch.Generator().manual_seed(seed)
    rows = torch.randn(len(labels), 3, generator=generator, dtype=torch.float64, requires_grad=True)
    cosines, used = cosines_between(rows)
    assert used.all()
    same, other = pairs_of(classes)
    ours = [
        contrast(cosines, same, other, positives, negatives, tau),
        penalty(cosines, same, 0.2, tau, positives if hardest else None),
    ]
    wanted = naive(rows, classes, tau, positives, negatives, 0.2, hardest)
    for one, naively in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, naively)
        slopes = [torch.autograd.grad(term, rows, retain_graph=True)[0] for term in (one, naively)]
        torch.testing.assert_close(*slopes)


def test_a_low_temperature_neither_overflows_nor_loses_its_gradient() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.1]], requires_grad=True)
    cosines, _ = cosines_between(1e3 * rows)
    same, other = pairs_of(torch.tensor([0, 0, 1]))
    value = contrast(cosines, same, other, 1, 2, 1e-4)
    value.backward()  # type: ignore[no-untyped-call]
    assert 1e3 < value < math.inf
    assert rows.grad is not None
    assert 0 < rows.grad.abs().max() < math.inf


def test_a_row_of_zeros_has_no_slope() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    cosines, used = cosines_between(rows)
    assert used.tolist() == [False, True]
    cosines.sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert rows.grad.isfinite().all()
    assert not rows.grad[0].any()


def test_the_penalty_opens_where_a_class_has_collapsed() -> None:
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.02], [0.0, 1.0]])
    cosines, _ = cosines_between(rows)
    together, _ = pairs_of(torch.tensor([0, 0, 1]))
    apart, _ = pairs_of(torch.tensor([0, 1, 0]))
    assert penalty(cosines, together, 0.7, 0.05) > 0.6  # nearly log 2
    assert penalty(cosines, apart, 0.7, 0.05) == 0


def step_of(dims: int, labels: Tensor | None = None) -> Step:
    workspace = build_workspace(tiny_recipe(), tiny_task(dims))
    data = tiny_site("north", 4, dims)
    images, truth = data.images.batch(torch.arange(1, 4))
    generator, cpu = torch.Generator().manual_seed(0), torch.device("cpu")
    site = SiteRound("north", 0, workspace.network, {}, data, cpu, generator, 3)
    truth = truth if labels is None else labels
    step = Step(site, workspace.network, images, truth, generator, 0, 0, 0, True, 0.0, 0.01)
    step.output = workspace.network.features(images)
    return step


def installed(step: Step, **chosen: object) -> FedRcl:
    component = FedRcl(FedRcl.Settings(**chosen), Context(tiny_task(step.images.dim() - 2)))
    component.install(step.network)
    return component


def naive_means(maps: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Class by class and image by image; labels at the maps' positions, nearest."""
    step = labels.shape[1] // maps.shape[2]
    rows, classes = [], []
    for image, label in zip(maps, labels[(slice(None), *[slice(None, None, step)] * (labels.dim() - 1))], strict=True):
        for number in range(3):
            if (label == number).any():
                rows.append(image[:, label == number].mean(1))
                classes.append(number)
    return torch.stack(rows), torch.tensor(classes)


@pytest.mark.parametrize("instances", ["means", "pixels"])
@pytest.mark.parametrize("dims", [2, 3])
def test_both_terms_are_means_over_all_maps_of_the_decoder(dims: int, instances: str) -> None:
    step = step_of(dims)
    component = installed(step, instances=instances, pixels=4, beta=0.5, weight=2.0)
    terms = component.loss(step)
    total = torch.zeros(2)
    for tap, maps in zip(("decoder1", "decoder0"), step.output.decoder, strict=True):
        if instances == "means":
            rows, classes = naive_means(maps, step.labels)
        else:
            pixels, classes = step.once(f"fedrcl/{tap}", lambda: (torch.zeros(0), torch.zeros(0)))
            assert torch.bincount(classes, minlength=3).max() <= 4
            flat = maps.flatten(2)
            rows = torch.stack([flat[p // flat.shape[2], :, p % flat.shape[2]] for p in pixels.tolist()])
        alive = rows.square().sum(1) > 1e-12
        total += torch.stack(naive(rows[alive], classes[alive], 0.05, 1, 2, 0.7, False)) / 2
    torch.testing.assert_close(terms["fedrcl_contrast"], 2 * total[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["fedrcl_penalty"], 2 * 0.5 * total[1], rtol=1e-4, atol=1e-5)
    again = component.loss(step)
    assert all(torch.equal(again[name], value) for name, value in terms.items())


@pytest.mark.parametrize("instances", ["means", "pixels"])
def test_a_single_class_has_no_contrast(instances: str) -> None:
    step = step_of(2, torch.zeros(3, 8, 8, dtype=torch.int64))
    terms = installed(step, instances=instances, pixels=4).loss(step)
    assert terms["fedrcl_contrast"] == 0
    assert terms["fedrcl_penalty"].isfinite()
    sum(terms.values()).backward()  # type: ignore[union-attr]
    slopes = [p.grad for p in step.network.parameters() if p.grad is not None]
    assert all(slope.isfinite().all() for slope in slopes)


def test_a_map_that_is_not_there_gets_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"fedrcl\(feature=decoder9\): no such map"):
        installed(step_of(2), taps=("decoder9",))
