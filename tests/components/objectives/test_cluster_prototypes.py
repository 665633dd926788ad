"""FPL's cluster prototypes against the equations written out pixel by pixel, and FINCH written out row by row."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cell_labels import labelled_cells
from polyclinic.components.base import Context
from polyclinic.components.objectives.cluster_prototypes import ClusterPrototypes
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.taps import map_of
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks import build_network
from polyclinic.recipe import NetworkSettings
from step_support import BARE
from support import Keeper, tiny_recipe, tiny_server, tiny_task

CLASSES = 4
TERMS = ("cluster_prototypes_contrast", "cluster_prototypes_consistency")


def setting(size: tuple[int, ...] = (8, 12), strong: int = 0, **chosen: Any) -> Any:
    """A component, and a step after the forward pass over two labelled and ``strong`` unlabelled images."""
    task = Task(tuple(f"class{i}" for i in range(CLASSES)), 1, len(size))
    network = build_network(task, NetworkSettings(width=2, depth=2), seed=0)
    component = ClusterPrototypes(ClusterPrototypes.Settings(**chosen), Context(task))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 1, *size, generator=generator)
    labels = torch.randint(0, CLASSES, (2, *size), generator=generator)
    step = Step(BARE, network, images, labels, generator, 1, 0, 0, True, 0.5, 0.1)  # type: ignore[arg-type]
    if strong:
        step.strong = torch.rand(strong, 1, *size, generator=generator)
    step.output = network.features(step.inputs)
    return SimpleNamespace(component=component, network=network, step=step, tap=component.settings.feature)


def receive(case: Any, shared: dict[str, Tensor]) -> None:
    case.component.receive(SimpleNamespace(network=case.network, device=torch.device("cpu")), shared)


def global_prototypes(case: Any, classes: tuple[int, ...] = (0, 0, 1, 3, 3, 3)) -> dict[str, Tensor]:
    width = case.network.widths[case.tap]
    vectors = torch.randn(len(classes), width, generator=torch.Generator().manual_seed(5))
    return {"prototypes": vectors, "prototypes_classes": torch.tensor(classes)}


def pixels(case: Any) -> list[tuple[Tensor, int]]:
    """Embedding and label of every pixel of the labelled images."""
    features, labels, cells = map_of(case.step.output, case.tap), case.step.labels, case.component.settings.cells
    return [
        (features[(image, slice(None), *place)], label)
        for image in range(len(labels))
        for place, label in labelled_cells(features.shape[2:], labels[image], cells)
    ]


def naive_terms(case: Any, shared: dict[str, Tensor], tau: float) -> dict[str, Tensor]:
    """Eqs. 6-8 and 10, pixel by pixel; the distance is a mean over channels."""
    vectors, owners = shared["prototypes"], shared["prototypes_classes"]
    contrasts, distances = [], []
    for e, y in pixels(case):
        if not (owners == y).any():
            continue
        weights = [torch.exp(torch.dot(e, c) / (e.norm() * c.norm() + 1e-12) / tau) for c in vectors]
        own = sum(w for w, owner in zip(weights, owners, strict=True) if owner == y)
        contrasts.append(-torch.log(own / sum(weights)))
        distances.append((e - vectors[owners == y].mean(0)).square().mean())
    return dict(zip(TERMS, (torch.stack(contrasts).mean(), torch.stack(distances).mean()), strict=True))


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"tau": 0.3, "weight": 2.5},
        {"size": (13, 11), "strong": 1},
        {"feature": "decoder0", "size": (9, 5)},
        {"feature": "encoder1", "size": (8, 4, 6), "tau": 1.0},
        {"size": (9, 8, 4)},
        {"cells": "majority"},
        {"cells": "majority", "size": (13, 11), "strong": 1},
        {"cells": "share"},
        {"cells": "share", "size": (9, 8, 4), "weight": 0.5},
    ],
    ids=str,
)
def test_values_and_gradients_equal_the_equations_written_out(chosen: dict[str, Any]) -> None:
    case = setting(**chosen)
    shared = global_prototypes(case)
    receive(case, shared)
    terms = case.component.loss(case.step)
    assert terms.keys() == set(TERMS)
    naive = naive_terms(case, shared, chosen.get("tau", 0.05))
    where = map_of(case.step.output, case.tap)
    for name in TERMS:
        wanted = chosen.get("weight", 1.0) * naive[name]
        torch.testing.assert_close(terms[name], wanted, rtol=1e-4, atol=1e-5)
        (got,) = torch.autograd.grad(terms[name], where, retain_graph=True)
        (expected,) = torch.autograd.grad(wanted, where, retain_graph=True)
        # A pixel of zeros has no direction and an arbitrary slope, which ends at the ReLU that made the zeros.
        passed = where > 0
        torch.testing.assert_close(got[passed], expected[passed], rtol=1e-3, atol=1e-5)
        assert got[passed].any()
        assert not got[2:].any()


def test_a_temperature_that_overflows_an_exponential_stays_finite() -> None:
    """exp(1 / 0.005) is infinite in float32."""
    case = setting(tau=0.005)
    receive(case, global_prototypes(case))
    total = sum(case.component.loss(case.step).values(), torch.zeros(()))
    (gradient,) = torch.autograd.grad(total, map_of(case.step.output, case.tap))
    assert total.isfinite()
    assert gradient.isfinite().all()


def test_a_batch_of_classes_without_prototypes_gives_zero_and_no_gradient() -> None:
    case = setting()
    receive(case, global_prototypes(case))
    case.step.labels[:] = 2
    terms = case.component.loss(case.step)
    (gradient,) = torch.autograd.grad(sum(terms.values(), torch.zeros(())), map_of(case.step.output, case.tap))
    assert [terms[name].item() for name in TERMS] == [0, 0]
    assert not gradient.any()


def test_an_empty_mask_is_contrasted_as_background() -> None:
    case = setting()
    shared = global_prototypes(case)
    receive(case, shared)
    case.step.labels[:] = 0
    terms = case.component.loss(case.step)
    for name, wanted in naive_terms(case, shared, 0.05).items():
        torch.testing.assert_close(terms[name], wanted, rtol=1e-4, atol=1e-5)
    counts = case.component.share(BARE)["prototypes_pixels"]
    assert counts.tolist() == [2 * 2 * 3, 0, 0, 0]


@pytest.mark.parametrize("cells", ["nearest", "majority", "share"])
def test_the_first_round_collects_means_of_the_bottleneck_and_adds_no_term(cells: str) -> None:
    case = setting(cells=cells)
    receive(case, {})
    assert case.component.loss(case.step) == {}
    shared = case.component.share(BARE)
    for c in range(CLASSES):
        mine = [e for e, y in pixels(case) if y == c]
        assert shared["prototypes_pixels"][c] == len(mine)
        wanted = torch.stack(mine).mean(0) if mine else torch.zeros(8)
        torch.testing.assert_close(shared["prototypes"][c], wanted)


def naive_finch(rows: Tensor) -> list[set[int]]:
    """The coarsest partition of more than one cluster, or the first: rows linked with their first neighbours."""

    def linked(points: list[Tensor]) -> list[set[int]]:
        groups = [{i} for i in range(len(points))]
        for i, point in enumerate(points):
            others = [j for j in range(len(points)) if j != i]
            if not others:
                continue
            nearest = max(others, key=lambda j: float(F.cosine_similarity(point, points[j], dim=0)))
            merged = {i, nearest}.union(*(g for g in groups if g & {i, nearest}))
            groups = [g for g in groups if not g & merged] + [merged]
        return groups

    rows = rows.double()
    partition = linked(list(rows))
    while len(partition) > 1:
        means = [torch.stack([rows[i] for i in group]).mean(0) for group in partition]
        coarser = [set().union(*(partition[i] for i in group)) for group in linked(means)]
        if len(coarser) == 1:
            break
        partition = coarser
    return partition


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 14), st.integers(0, 1000))
def test_the_server_clusters_the_sites_means_of_each_class(sites: int, seed: int) -> None:
    """Eqs. 4-5. Site ``m`` lacks class 1 where ``m`` is odd; no site has class 2."""
    case = setting()
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(sites, CLASSES, 8, generator=generator)
    counts = torch.randint(1, 50, (sites, CLASSES), generator=generator)
    counts[1::2, 1] = counts[:, 2] = 0
    means[counts == 0] = 0
    shared = {f"s{m}": {"prototypes": means[m], "prototypes_pixels": counts[m]} for m in range(sites)}
    combined = case.component.combine(SimpleNamespace(network=case.network), shared)
    assert set(combined["prototypes_classes"].tolist()) == {0, 1, 3}
    for c in (0, 1, 3):
        rows = means[counts[:, c] > 0, c]
        got = combined["prototypes"][combined["prototypes_classes"] == c]
        wanted = [rows[sorted(group)].mean(0) for group in naive_finch(rows)]
        assert len(got) == len(wanted)
        for vector in wanted:
            assert (got - vector).abs().amax(1).min() < 1e-5


def test_two_kinds_of_sites_give_two_prototypes() -> None:
    case = setting(feature="encoder0")
    directions = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    counts = torch.tensor([7, 0, 0, 0])
    shared = {
        str(m): {"prototypes": torch.cat([v[None], torch.zeros(3, 2)]), "prototypes_pixels": counts}
        for m, v in enumerate(directions)
    }
    combined = case.component.combine(SimpleNamespace(network=case.network), shared)
    torch.testing.assert_close(combined["prototypes"], torch.tensor([[1.0, 0.05], [0.05, 1.0]]))
    assert combined["prototypes_classes"].tolist() == [0, 0]


def test_weight_zero_looks_at_nothing_and_shares_nothing() -> None:
    case = setting(weight=0)
    receive(case, global_prototypes(case))
    del case.step.output
    assert case.component.loss(case.step) == {}
    assert case.component.share(BARE) == {}
    assert case.component.leaves(case.network) == ()


@pytest.mark.parametrize(("tap", "hint"), [("decoder9", "Maps: encoder0"), ("botleneck", "did you mean 'bottleneck'")])
def test_a_wrong_tap_gets_a_sentence(tap: str, hint: str) -> None:
    with pytest.raises(PolyclinicError, match=f"cluster_prototypes.feature={tap}.") as problem:
        build_workspace(tiny_recipe(f"fpl(feature={tap})"), tiny_task())
    assert hint in str(problem.value)


@pytest.mark.parametrize(("method", "sizes"), [("fpl", None), ("fpl(feature=decoder1)", {"south": 3})])
def test_the_first_round_shares_and_the_second_aligns(
    method: str, sizes: dict[str, int] | None, tmp_path: Path
) -> None:
    """The class core is absent at south, so a federation of south alone has two prototypes."""
    server = tiny_server(tmp_path, tiny_recipe(method), sizes=sizes, observer=(keeper := Keeper()))
    server.fit()
    aligned = [{set(TERMS) <= terms.keys() for terms in event["losses"].values()} for event in keeper.events]
    assert aligned == [{False}, {True}, {True}]
    found = server.state.shared["cluster_prototypes"]["prototypes_classes"].tolist()
    assert set(found) == ({0, 1} if sizes else {0, 1, 2})
