"""FedProto's prototypes against the equations written out pixel by pixel."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.base import Context
from polyclinic.components.objectives.class_prototypes import ClassPrototypes
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.taps import map_of
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks import build_network
from polyclinic.recipe import NetworkSettings
from step_support import BARE
from support import Keeper, tiny_recipe, tiny_server, tiny_task

CLASSES = 4


def setting(size: tuple[int, ...] = (8, 8), strong: int = 0, seed: int = 0, **chosen: Any) -> Any:
    """A component, and a step after the forward pass over two labelled and ``strong`` unlabelled images."""
    task = Task(tuple(f"class{i}" for i in range(CLASSES)), 1, len(size))
    network = build_network(task, NetworkSettings(width=2, depth=2), seed=0)
    component = ClassPrototypes(ClassPrototypes.Settings(**chosen), Context(task))
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(2, 1, *size, generator=generator)
    labels = torch.randint(0, CLASSES, (2, *size), generator=generator)
    step = Step(BARE, network, images, labels, generator, 1, 0, 0, True, 0.5, 0.1)  # type: ignore[arg-type]
    if strong:
        step.strong = torch.rand(strong, 1, *size, generator=generator)
    step.output = network.features(step.inputs)
    return SimpleNamespace(component=component, network=network, step=step, tap=component.settings.feature)


def receive(case: Any, shared: dict[str, Tensor]) -> None:
    case.component.receive(SimpleNamespace(network=case.network, device=torch.device("cpu")), shared)


def global_prototypes(case: Any, classes: tuple[int, ...] = (0, 1, 3)) -> dict[str, Tensor]:
    """One prototype for each of these classes."""
    width = case.network.widths[case.tap]
    vectors = torch.randn(len(classes), width, generator=torch.Generator().manual_seed(5))
    return {"prototypes": vectors, "prototypes_classes": torch.tensor(classes, dtype=torch.long)}


def pixels(case: Any) -> list[tuple[Tensor, int]]:
    """Embedding and label of every pixel of the labelled images; position ``i`` of ``n`` has label ``i * N // n``."""
    features, labels = map_of(case.step.output, case.tap), case.step.labels
    size, full = features.shape[2:], labels.shape[1:]
    found = []
    for image in range(len(labels)):
        for place in product(*map(range, size)):
            source = tuple(i * whole // part for i, whole, part in zip(place, full, size, strict=True))
            found.append((features[(image, slice(None), *place)], int(labels[(image, *source)])))
    return found


def naive_distance(case: Any, shared: dict[str, Tensor]) -> Tensor:
    """Eqs. 7-8, pixel by pixel."""
    own = dict(zip(shared["prototypes_classes"].tolist(), shared["prototypes"], strict=True))
    terms = [(e - own[y]).square().mean() for e, y in pixels(case) if y in own]
    return torch.stack(terms).mean() if terms else torch.zeros(())


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"feature": "bottleneck"},
        {"feature": "encoder1", "size": (11, 6)},
        {"feature": "decoder1", "size": (13, 9), "strong": 2},
        {"size": (4, 6, 9)},
        {"feature": "bottleneck", "size": (8, 4, 9), "weight": 0.3},
    ],
    ids=str,
)
def test_value_and_gradients_equal_the_equations_written_out(chosen: dict[str, Any]) -> None:
    case = setting(**chosen)
    shared = global_prototypes(case)
    receive(case, shared)
    terms = case.component.loss(case.step)
    assert terms.keys() == {"class_prototypes_distance"}
    ours, naive = terms["class_prototypes_distance"], chosen.get("weight", 1.0) * naive_distance(case, shared)
    torch.testing.assert_close(ours, naive, rtol=1e-5, atol=1e-6)
    where = map_of(case.step.output, case.tap)
    (got,) = torch.autograd.grad(ours, where, retain_graph=True)
    (wanted,) = torch.autograd.grad(naive, where)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-7)
    assert got[:2].any()
    assert not got[2:].any()


def test_pixels_whose_class_has_no_prototype_are_left_out() -> None:
    case = setting()
    receive(case, global_prototypes(case, (2,)))
    case.step.labels[:] = 1
    value = case.component.loss(case.step)["class_prototypes_distance"]
    (gradient,) = torch.autograd.grad(value, map_of(case.step.output, case.tap))
    assert value == 0
    assert not gradient.any()


def test_what_leaves_is_the_mean_over_the_last_epoch_and_a_second_pass_does_not_count() -> None:
    """Eq. 3 over two batches; class 2 is absent in both."""
    first, second = setting(seed=1), setting(seed=2)
    receive(first, {})
    for case in (first, second):
        case.step.labels[case.step.labels == 2] = 1
    early = setting(seed=3)
    early.step.last_epoch = False
    assert first.component.loss(early.step) == {}
    for case in (first, second):
        assert first.component.loss(case.step) == {}
        assert first.component.loss(case.step) == {}
    shared = first.component.share(BARE)
    every = pixels(first) + pixels(second)
    for c in range(CLASSES):
        mine = [e for e, y in every if y == c]
        wanted = torch.stack(mine).mean(0) if mine else torch.zeros(2)
        torch.testing.assert_close(shared["prototypes"][c], wanted)
        assert shared["prototypes_pixels"][c] == len(mine)
    assert shared["prototypes_pixels"][2] == 0
    assert not shared["prototypes"].requires_grad


def test_an_empty_mask_leaves_background_alone() -> None:
    case = setting()
    receive(case, global_prototypes(case))
    case.step.labels[:] = 0
    ours = case.component.loss(case.step)["class_prototypes_distance"]
    torch.testing.assert_close(ours, naive_distance(case, global_prototypes(case)))
    assert case.component.share(BARE)["prototypes_pixels"].tolist() == [128, 0, 0, 0]


def test_a_batch_without_labelled_images_gives_nothing() -> None:
    case = setting()
    receive(case, global_prototypes(case))
    case.step.images, case.step.labels = case.step.images[:0], case.step.labels[:0]
    assert case.component.loss(case.step) == {}
    assert not case.component.share(BARE)["prototypes"].any()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=5), st.booleans())
def test_the_server_averages_over_the_sites_that_have_the_class(counts: list[list[int]], weighted: bool) -> None:
    """Eq. 6; a count of 0 is a class that the site lacks."""
    case = setting(feature="bottleneck", sites="pixels" if weighted else "uniform")
    pixel_counts = torch.tensor([[*row, 0] for row in counts])
    means = torch.randn(len(counts), CLASSES, 8, generator=torch.Generator().manual_seed(len(counts)))
    means[pixel_counts == 0] = 0
    shared = {f"s{m}": {"prototypes": means[m], "prototypes_pixels": pixel_counts[m]} for m in range(len(counts))}
    combined = case.component.combine(SimpleNamespace(network=case.network), shared)
    wanted = {}
    for c in range(CLASSES):
        having = [m for m in range(len(counts)) if pixel_counts[m, c] > 0]
        scales = [float(pixel_counts[m, c]) if weighted else 1.0 for m in having]
        if having:
            wanted[c] = sum(s * means[m, c] for s, m in zip(scales, having, strict=True)) / sum(scales)
    assert combined["prototypes_classes"].tolist() == list(wanted)
    assert combined["prototypes_classes"].dtype == torch.int64
    for vector, expected in zip(combined["prototypes"], wanted.values(), strict=True):
        torch.testing.assert_close(vector, expected)


def test_classes_that_no_site_has_end_in_no_term() -> None:
    case = setting()
    nothing = {"prototypes": torch.zeros(CLASSES, 2), "prototypes_pixels": torch.zeros(CLASSES, dtype=torch.long)}
    receive(case, case.component.combine(SimpleNamespace(network=case.network), {"a": nothing}))
    assert case.component.loss(case.step) == {}


def test_weight_zero_looks_at_nothing_and_shares_nothing() -> None:
    case = setting(weight=0)
    receive(case, global_prototypes(case))
    del case.step.output
    assert case.component.loss(case.step) == {}
    assert case.component.share(BARE) == {}
    assert case.component.leaves(case.network) == ()
    assert case.component.combine(SimpleNamespace(network=case.network), {"a": {}}) == {}


@pytest.mark.parametrize(
    ("tap", "hint"), [("decoder7", "Maps: encoder0"), ("botleneck", "did you mean 'bottleneck'"), ("input", "Maps:")]
)
def test_a_wrong_tap_gets_a_sentence(tap: str, hint: str) -> None:
    with pytest.raises(PolyclinicError, match=f"class_prototypes.feature={tap}.") as problem:
        build_workspace(tiny_recipe(f"fedproto(feature={tap})"), tiny_task())
    assert hint in str(problem.value)


@pytest.mark.parametrize("method", ["fedproto", "fedproto+no_exchange", "fedproto(feature=bottleneck)"])
def test_the_first_round_shares_and_the_second_aligns(method: str, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(method), observer=(keeper := Keeper()))
    server.fit()
    aligned = [{"class_prototypes_distance" in terms for terms in e["losses"].values()} for e in keeper.events]
    assert aligned == [{False}, {True}, {True}]
    assert server.state.shared["class_prototypes"]["prototypes_classes"].tolist() == [0, 1, 2]
    assert bool(server.workspace.exchanged) == ("no_exchange" not in method)


def test_one_site_gets_its_own_means_back(tmp_path: Path) -> None:
    """The class core is absent at south."""
    server = tiny_server(tmp_path, tiny_recipe("fedproto"), sizes={"south": 3})
    (update,) = server.engine.train(Broadcast(0, server.state.weights), ["south"])
    server.round()
    back = server.state.shared["class_prototypes"]
    assert back["prototypes_classes"].tolist() == [0, 1]
    torch.testing.assert_close(back["prototypes"], update.shared["class_prototypes"]["prototypes"][:2])
