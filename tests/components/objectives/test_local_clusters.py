"""FedPLVM's clusters and loss against the equations written out image by image and row by row."""

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
from polyclinic.components.objectives.local_clusters import LocalClusters
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.taps import map_of
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.data.sitedata import SiteData
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks import build_network
from polyclinic.networks.base import Features
from polyclinic.recipe import NetworkSettings
from support import Keeper, tiny_recipe, tiny_server, tiny_site, tiny_task

CLASSES = 4
TERMS = ("local_clusters_contrast", "local_clusters_correction")


def setting(size: tuple[int, ...] = (8, 12), strong: int = 0, **chosen: Any) -> Any:
    """A component, and a step after the forward pass; class 3 is absent in the first image."""
    task = Task(tuple(f"class{i}" for i in range(CLASSES)), 2, len(size))
    network = build_network(task, NetworkSettings(width=2, depth=2, norm="batch"), seed=0)
    component = LocalClusters(LocalClusters.Settings(**chosen), Context(task))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 2, *size, generator=generator)
    labels = torch.randint(0, CLASSES, (3, *size), generator=generator).to(torch.uint8)
    labels[0][labels[0] == 3] = 0
    step = Step(None, network, images, labels, generator, 1, 0, 0, True, 0.5, 0.1)  # type: ignore[arg-type]
    if strong:
        step.strong = torch.rand(strong, 2, *size, generator=generator)
    step.output = network.features(step.inputs)
    return SimpleNamespace(component=component, network=network, step=step, tap=component.settings.feature)


def receive(case: Any, shared: dict[str, Tensor]) -> None:
    case.component.receive(SimpleNamespace(device=torch.device("cpu")), shared)


def global_prototypes(case: Any, classes: tuple[int, ...] = (0, 0, 1, 3, 3, 3)) -> dict[str, Tensor]:
    """Directions of any sign, so that some cosines are negative."""
    width = case.network.widths[case.tap]
    vectors = torch.randn(len(classes), width, generator=torch.Generator().manual_seed(5))
    return {"prototypes": vectors, "prototypes_classes": torch.tensor(classes)}


def samples(features: Tensor, labels: Tensor, cells: str = "nearest") -> list[tuple[Tensor, int]]:
    """The mean embedding of every class in every image, pixel by pixel, and the class."""
    found: list[tuple[Tensor, int]] = []
    for image in range(len(labels)):
        pixels: dict[int, list[Tensor]] = {}
        for place, label in labelled_cells(features.shape[2:], labels[image], cells):
            pixels.setdefault(label, []).append(features[(image, slice(None), *place)])
        found += [(torch.stack(pixels[c]).mean(0), c) for c in sorted(pixels)]
    return [(f, c) for f, c in found if f.norm() > 0]


def naive_terms(case: Any, shared: dict[str, Tensor], alpha: float = 0.25, tau: float = 0.07) -> dict[str, Tensor]:
    """Eq. 5, sample by sample."""
    vectors, owners = shared["prototypes"], shared["prototypes_classes"]
    contrasts, corrections = [], []
    for f, c in samples(map_of(case.step.output, case.tap), case.step.labels, case.component.settings.cells):
        if not (owners == c).any():
            continue
        weights = []
        for p in vectors:
            cosine = torch.dot(f, p) / (f.norm() * p.norm())
            similarity = cosine**alpha if cosine > 1e-6 else torch.tensor(1e-6**alpha)
            weights.append(torch.exp(similarity / tau))
        own = sum(w for w, owner in zip(weights, owners, strict=True) if owner == c)
        contrasts.append(-torch.log(own / sum(weights)))
        mean = torch.stack([p for p, owner in zip(vectors, owners, strict=True) if owner == c]).mean(0)
        corrections.append(2 * (torch.dot(f, mean) / (f.norm() * mean.norm()) - 1) ** 2)
    return dict(zip(TERMS, (torch.stack(contrasts).mean(), torch.stack(corrections).mean()), strict=True))


@pytest.mark.parametrize(
    "chosen",
    [
        {"weight": 1.0},
        {},
        {"alpha": 1.0, "tau": 0.5, "weight": 2.0},
        {"alpha": 0.6, "tau": 0.2, "weight": 1.0, "size": (13, 11), "strong": 2},
        {"feature": "decoder0", "size": (9, 5), "weight": 1.0},
        {"size": (8, 4, 9), "weight": 1.0},
        {"feature": "encoder1", "size": (4, 8, 6), "weight": 0.5},
        {"cells": "majority", "size": (13, 11), "weight": 1.0},
        {"cells": "share", "size": (13, 11), "weight": 1.0},
    ],
    ids=str,
)
def test_values_and_gradients_equal_the_equation_written_out(chosen: dict[str, Any]) -> None:
    case = setting(**chosen)
    shared = global_prototypes(case)
    receive(case, shared)
    terms = case.component.loss(case.step)
    assert terms.keys() == set(TERMS)
    naive = naive_terms(case, shared, chosen.get("alpha", 0.25), chosen.get("tau", 0.07))
    where, weight = map_of(case.step.output, case.tap), chosen.get("weight", 100.0)
    for name in TERMS:
        torch.testing.assert_close(terms[name], weight * naive[name], rtol=1e-4, atol=1e-4 * weight)
        (got,) = torch.autograd.grad(terms[name], where, retain_graph=True)
        (wanted,) = torch.autograd.grad(weight * naive[name], where, retain_graph=True)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5 * weight)
        assert got[:3].any()
        assert not got[3:].any()


def test_a_second_call_gives_the_same_and_a_step_without_labelled_images_nothing() -> None:
    case = setting()
    receive(case, global_prototypes(case))
    first, second = (case.component.loss(case.step) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in TERMS)
    case.step.images, case.step.labels = case.step.images[:0], case.step.labels[:0]
    assert case.component.loss(case.step) == {}


def with_map(case: Any, features: Tensor) -> Tensor:
    """Put a map of one's own at the bottleneck."""
    features = features.requires_grad_()
    case.step.output = Features([features], [], case.step.output.logits)
    return features


@pytest.mark.parametrize("labels", [2, 0], ids=["class without prototype", "map of zeros"])
def test_no_usable_sample_gives_zero_and_no_gradient(labels: int) -> None:
    case = setting()
    receive(case, global_prototypes(case))
    features = with_map(case, torch.rand(3, 8, 2, 3) * labels)
    case.step.labels[:] = labels
    terms = case.component.loss(case.step)
    (gradient,) = torch.autograd.grad(sum(terms.values(), torch.zeros(())), features)
    assert [terms[name].item() for name in TERMS] == [0, 0]
    assert not gradient.any()


def test_cosines_that_are_negative_or_zero_give_finite_values_and_slopes() -> None:
    """A power of them is NaN or has no finite slope; the correction still turns the sample."""
    case = setting()
    receive(case, {"prototypes": torch.eye(8)[:2], "prototypes_classes": torch.tensor([0, 1])})
    features = with_map(case, torch.zeros(3, 8, 1, 1))
    with torch.no_grad():
        features[0, 0], features[1, 2], features[2, 1] = -1.0, 1.0, 1.0
    case.step.labels[:] = 0
    terms = case.component.loss(case.step)
    gradients = [torch.autograd.grad(terms[name], features, retain_graph=True)[0] for name in TERMS]
    assert all(g.isfinite().all() for g in gradients)
    torch.testing.assert_close(terms[TERMS[1]], torch.tensor(100 * (8.0 + 2.0 + 2.0) / 3))
    assert gradients[1][1:, 0].max() < 0


def test_nothing_happens_in_the_first_round_and_with_weight_zero() -> None:
    case = setting()
    receive(case, {})
    assert case.component.loss(case.step) == {}
    case = setting(weight=0)
    receive(case, global_prototypes(case))
    assert case.component.loss(case.step) == {}
    assert case.component.share(None) == {}
    assert case.component.leaves(case.network) == ()
    assert case.component.combine(None, {"a": {}}) == {}


# ---- clusters at a site and at the server --------------------------------------------------------------------------


def naive_finch(rows: Tensor, partition: str = "last") -> list[list[int]]:
    """Rows linked with their first neighbours, then the clusters' means, until one cluster would be left."""

    def linked(points: list[Tensor]) -> list[set[int]]:
        groups = [{i} for i in range(len(points))]
        for i, point in enumerate(points):
            others = [j for j in range(len(points)) if j != i]
            if others:
                nearest = max(others, key=lambda j: float(F.cosine_similarity(point, points[j], dim=0)))
                merged = {i, nearest}.union(*(g for g in groups if g & {i, nearest}))
                groups = [g for g in groups if not g & merged] + [merged]
        return groups

    rows = rows.double()
    current = linked(list(rows))
    while len(current) > 1 and partition == "last":
        means = [torch.stack([rows[i] for i in group]).mean(0) for group in current]
        coarser = [set().union(*(current[i] for i in group)) for group in linked(means)]
        if len(coarser) == 1:
            break
        current = coarser
    return [sorted(group) for group in current]


def assert_clusters(vectors: Tensor, classes: Tensor, rows: dict[int, Tensor], partition: str = "last") -> None:
    assert classes.dtype == torch.int64
    assert set(classes.tolist()) == set(rows)
    for c, own in rows.items():
        got = vectors[classes == c]
        wanted = [own[group].mean(0) for group in naive_finch(own, partition)]
        assert len(got) == len(wanted)
        for vector in wanted:
            assert (got - vector).abs().amax(1).min() < 1e-5


def site_round(data: SiteData, case: Any) -> SiteRound:
    return SiteRound(data.site, 1, case.network, {}, data, torch.device("cpu"), torch.Generator(), batch_size=4)


def local_rows(case: Any, data: SiteData) -> dict[int, Tensor]:
    """The samples of each class of all training images, in eval mode."""
    images, labels = data.images.batch(data.training_indices(True))
    with torch.no_grad():
        features = map_of(case.network.eval().features(images), case.tap)
    case.network.train()
    found = samples(features, labels)
    return {c: torch.stack([f for f, y in found if y == c]) for c in sorted({y for _, y in found})}


@pytest.mark.parametrize("partition", ["last", "first"])
@pytest.mark.parametrize(("size", "tap"), [((8, 8), "bottleneck"), ((8, 8), "decoder1"), ((8, 8, 8), "encoder1")])
def test_what_leaves_are_clusters_of_the_images_class_means(size: tuple[int, ...], tap: str, partition: str) -> None:
    """Eq. 3, over images in several batches; one has an empty mask."""
    case = setting(size=size, feature=tap, partition=partition)
    data = tiny_site("north", 9, len(size))
    rows = local_rows(case, data)
    assert len(rows[0]) == 9
    assert len(rows[1]) < 9
    receive(case, {})
    before = {name: tensor.clone() for name, tensor in case.network.state_dict().items()}
    if not tap.startswith("decoder"):
        case.network.decode = None
    shared = case.component.share(site_round(data, case))
    assert_clusters(shared["prototypes"], shared["classes"], rows, partition)
    assert all(one.accepts(shared[one.name]) for one in case.component.leaves(case.network))
    assert case.network.training
    assert all(torch.equal(before[name], tensor) for name, tensor in case.network.state_dict().items())


def test_the_first_partition_is_finer() -> None:
    counts = {}
    for partition in ("first", "last"):
        case = setting(partition=partition)
        receive(case, {})
        counts[partition] = len(case.component.share(site_round(tiny_site("north", 90), case))["classes"])
    assert counts["last"] < counts["first"] < 3 * 90 / 2


def test_a_class_that_the_site_lacks_is_filled_with_the_received_average() -> None:
    """South lacks class 2; nobody has a prototype of class 3 yet."""
    case = setting(size=(8, 8))
    site = site_round(tiny_site("south", 3), case)
    receive(case, {})
    alone = case.component.share(site)
    assert set(alone["classes"].tolist()) == {0, 1}
    received = global_prototypes(case, (0, 2, 2, 1))
    receive(case, received)
    filled = case.component.share(site)
    own = len(alone["classes"])
    assert torch.equal(filled["prototypes"][:own], alone["prototypes"])
    assert filled["classes"][own:].tolist() == [2]
    torch.testing.assert_close(filled["prototypes"][own], received["prototypes"][1:3].mean(0))


def test_a_site_without_labelled_images_shares_empty_tensors() -> None:
    case = setting(size=(8, 8))
    site = site_round(tiny_site("west", 2, labelled=False), case)
    for received in ({}, global_prototypes(case)):
        receive(case, received)
        shared = case.component.share(site)
        assert shared["prototypes"].shape == (0, 8)
        assert shared["classes"].shape == (0,)
        assert all(one.accepts(shared[one.name]) for one in case.component.leaves(case.network))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 1000))
def test_the_server_clusters_the_sites_clusters_again(counts: list[int], seed: int) -> None:
    """Eq. 4. A site may have no cluster, and so may all of them; class 2 is nowhere."""
    case = setting()
    generator = torch.Generator().manual_seed(seed)
    shared = {
        f"s{m}": {
            "prototypes": torch.randn(count, 8, generator=generator),
            "classes": torch.tensor([0, 1, 3])[torch.randint(0, 3, (count,), generator=generator)],
        }
        for m, count in enumerate(counts)
    }
    combined = case.component.combine(None, shared)
    vectors, classes = (torch.cat([one[key] for one in shared.values()]) for key in ("prototypes", "classes"))
    rows = {c: vectors[classes == c] for c in set(classes.tolist())}
    assert_clusters(combined["prototypes"], combined["prototypes_classes"], rows)
    receive(case, combined)
    assert (case.component.loss(case.step) == {}) == (sum(counts) == 0)


# ---- a whole run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [2, 3])
def test_the_first_round_shares_and_the_second_aligns(dims: int, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedplvm"), dims, observer=(keeper := Keeper()))
    server.fit()
    aligned = [{set(TERMS) <= terms.keys() for terms in event["losses"].values()} for event in keeper.events]
    assert aligned == [{False}, {True}, {True}]
    assert set(server.state.shared["local_clusters"]["prototypes_classes"].tolist()) <= {0, 1, 2}


def test_a_run_in_which_one_site_has_no_labels(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedplvm"), observer=(keeper := Keeper()))
    server.engine.sites["west"].data = tiny_site("west", 2, labelled=False)  # type: ignore[attr-defined]
    server.fit()
    assert not keeper.refusals
    assert keeper.events[-1]["samples"]["west"] == 0
    assert set(TERMS) <= keeper.events[-1]["losses"]["north"].keys()


@pytest.mark.parametrize(("tap", "hint"), [("decoder9", "Maps: encoder0"), ("botleneck", "did you mean 'bottleneck'")])
def test_a_wrong_tap_gets_a_sentence(tap: str, hint: str) -> None:
    with pytest.raises(PolyclinicError, match=f"local_clusters.feature={tap}.") as problem:
        build_workspace(tiny_recipe(f"fedplvm(feature={tap})"), tiny_task())
    assert hint in str(problem.value)
