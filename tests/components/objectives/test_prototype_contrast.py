from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mixed_sites import another_step
from polyclinic.components.base import Context
from polyclinic.components.objectives.prototype_contrast import (
    PrototypeContrast,
    Reservoir,
    draw_pixels_by_class,
    kmeans,
)
from polyclinic.components.step import Step
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.seeds import owner_number
from polyclinic.data.federation import Task
from polyclinic.exchange.messages import Broadcast, load_message, save_message
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks import build_network
from polyclinic.networks.base import Features
from polyclinic.recipe import NetworkSettings
from support import Keeper, assert_same, final_tensors, tiny_recipe, tiny_server

CHANNELS, SEED = 5, 11


def setting(dims: int = 2, size: int = 6, classes: int = 3, batch: int = 2, **own: Any) -> Any:
    """A component, a network with its projection, and a step of the last epoch after the forward pass."""
    task = Task(tuple(f"class{i}" for i in range(classes)), 1, dims)
    network = build_network(task, NetworkSettings(width=4, depth=1), seed=0)
    component = PrototypeContrast(PrototypeContrast.Settings(channels=CHANNELS, **own), Context(task))
    torch.manual_seed(1)
    component.install(network)
    images = torch.rand(batch, 1, *[size] * dims)
    labels = torch.randint(0, classes, (batch, *[size] * dims)).to(torch.uint8)
    generator = torch.Generator().manual_seed(0)
    site = SimpleNamespace(site="north", device=torch.device("cpu"), generator=generator, minimum_images=1)
    generator = torch.Generator().manual_seed(SEED)
    step = Step(site, network, images, labels, generator, 1, 1, 0, True, 0.5, 0.1)  # type: ignore[arg-type]
    step.output = network.features(images)
    return SimpleNamespace(component=component, network=network, step=step, site=site)


def prototypes(classes: Sequence[int], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"prototypes": torch.randn(len(classes), CHANNELS, generator=generator), "classes": torch.tensor(classes)}


def broadcast(**sites: dict[str, Tensor]) -> dict[str, Tensor]:
    component = PrototypeContrast(PrototypeContrast.Settings(channels=CHANNELS), Context(Task(("a", "b"), 1, 2)))
    return component.combine(None, sites)  # type: ignore[arg-type]


def naive_contrast(case: Any, bank: dict[str, Tensor], tau: float, pixels: list[tuple[int, int]]) -> Tensor:
    """InfoNCE written out for one pixel after another; pixels whose class has no prototype are not counted."""
    maps, labels = case.step.output.decoder[-1].flatten(2), case.step.labels.flatten(1)
    projection = case.network.extras["prototype_contrast"]
    values = []
    for image, position in pixels:
        z = projection.weight @ maps[image, :, position] + projection.bias
        own = every = torch.zeros(())
        for p, c in zip(bank["prototypes"], bank["classes"].tolist(), strict=True):
            term = torch.exp((z @ p) / (z.norm() * p.norm()) / tau)
            every = every + term
            own = own + term if c == int(labels[image, position]) else own
        if float(own.detach()) > 0:
            values.append(-torch.log(own / every))
    return torch.stack(values).mean() if values else torch.zeros(())


def drawn(case: Any, pixels: int, classes: int) -> list[tuple[int, int]]:
    """What the step's generator gives first."""
    positions, real = draw_pixels_by_class(
        case.step.labels.flatten(1).long(), classes, pixels, torch.Generator().manual_seed(SEED)
    )
    return [(b, int(positions[b, c, k])) for b, c, k in real.nonzero().tolist()]


# ---- the losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("pixels", [4, 10_000])
@pytest.mark.parametrize("present", [(0, 1, 1, 2), (0, 2, 2)])
def test_both_losses_and_their_gradients_are_those_of_loops(dims: int, pixels: int, present: tuple[int, ...]) -> None:
    """Also with a class that has no prototype. 10 000 is more than there are, so that every pixel counts."""
    case = setting(dims, size=4, pixels=pixels, tau=0.3, intra_weight=0.7, inter_weight=0.2)
    own, east, west = prototypes(present, 1), prototypes((0, 1), 2), prototypes((2, 0), 3)
    case.component.state = own
    case.component.receive(case.site, broadcast(east=east, north=own, west=west))
    others = {name: torch.cat([east[name], west[name]]) for name in own}
    terms = case.component.loss(case.step)
    count = 4**dims
    chosen = drawn(case, pixels, 3) if pixels < count else [(b, n) for b in range(2) for n in range(count)]
    wanted = {
        "prototype_contrast_intra": 0.7 * naive_contrast(case, own, 0.3, chosen),
        "prototype_contrast_inter": 0.2 * naive_contrast(case, others, 0.3, chosen),
    }
    assert terms.keys() == wanted.keys()
    parameters = [p for n, p in case.network.named_parameters() if not n.startswith("classifier")]
    for name, term in terms.items():
        torch.testing.assert_close(term, wanted[name])
        found, right = (torch.autograd.grad(v, parameters, retain_graph=True) for v in (term, wanted[name]))
        for one, other in zip(found, right, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3),
    st.integers(2, 4),
    st.integers(1, 3),
    st.integers(1, 9),
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
def test_losses_of_any_shape(shape: list[int], classes: int, batch: int, pixels: int, present: list[int]) -> None:
    case = setting(classes=classes, batch=batch, pixels=pixels, inter_weight=0.0)
    case.step.labels = torch.randint(0, classes, (batch, *shape))
    case.step.output = Features([], [torch.randn(batch, 4, *shape)], torch.zeros(batch, classes, *shape))
    case.component.state = prototypes([c % classes for c in present], 4)
    case.component.receive(case.site, {})
    (term,) = case.component.loss(case.step).values()
    chosen = drawn(case, pixels, classes)
    torch.testing.assert_close(term, 0.1 * naive_contrast(case, case.component.state, 0.1, chosen))


def test_another_map_meets_the_labels_nearest_to_it() -> None:
    case = setting(size=6, feature="bottleneck", inter_weight=0.0)
    case.component.state = prototypes((0, 1, 1, 2), 1)
    case.component.receive(case.site, {})
    (term,) = case.component.loss(case.step).values()
    case.step.output.decoder[-1], case.step.labels = case.step.output.encoder[-1], case.step.labels[:, ::2, ::2]
    chosen = [(b, n) for b in range(2) for n in range(9)]
    torch.testing.assert_close(term, 0.1 * naive_contrast(case, case.component.state, 0.1, chosen))


def test_there_is_no_term_in_the_first_round_and_no_gradient_is_prepared() -> None:
    case = setting()
    case.component.receive(case.site, {})
    seen: list[bool] = []
    projection: nn.Module = case.network.extras["prototype_contrast"]
    projection.register_forward_hook(lambda _module, _inputs, output: seen.append(output.requires_grad))
    assert case.component.loss(case.step) == {}
    assert seen == [False]
    assert sum(map(len, case.component._kept.of_classes())) == 2 * 36


def test_nothing_is_drawn_before_it_is_needed() -> None:
    """First round, not the last epoch: no prototypes to compare with and none to collect."""
    case = setting()
    case.step.last_epoch = False
    case.component.receive(case.site, {})
    before = case.step.generator.get_state()
    assert case.component.loss(case.step) == {}
    assert torch.equal(case.step.generator.get_state(), before)


def test_a_site_alone_has_no_inter_term() -> None:
    case = setting()
    own = prototypes((0, 1, 2), 1)
    case.component.state = own
    case.component.receive(case.site, broadcast(north=own))
    assert case.component.loss(case.step).keys() == {"prototype_contrast_intra"}


def test_pixels_of_classes_without_a_prototype_and_images_of_one_class() -> None:
    case = setting()
    case.step.labels.zero_()
    case.component.state = prototypes((1, 2), 1)
    case.component.receive(case.site, broadcast(west=prototypes((0, 1), 2)))
    terms = case.component.loss(case.step)
    weight = case.network.extras["prototype_contrast"].weight
    assert terms["prototype_contrast_intra"].item() == 0
    (gradient,) = torch.autograd.grad(terms["prototype_contrast_intra"], weight, retain_graph=True)
    assert not gradient.any()
    assert terms["prototype_contrast_inter"].item() > 0
    assert torch.autograd.grad(terms["prototype_contrast_inter"], weight)[0].any()


def test_a_batch_without_labelled_images_gives_nothing() -> None:
    case = setting()
    case.component.state = prototypes((0, 1), 1)
    case.component.receive(case.site, {})
    case.step.images, case.step.labels = case.step.images[:0], case.step.labels[:0]
    assert case.component.loss(case.step) == {}


def test_only_labelled_images_are_looked_at() -> None:
    """The strong view of unlabelled images comes behind them in the output."""
    plain, mixed = setting(), setting()
    mixed.step.strong = torch.rand(3, *mixed.step.images.shape[1:])
    mixed.network.eval()
    plain.network.eval()
    for case in (plain, mixed):
        case.step.output = case.network.features(case.step.inputs)
        case.component.state = prototypes((0, 1, 2), 1)
        case.component.receive(case.site, {})
    torch.testing.assert_close(mixed.component.loss(mixed.step), plain.component.loss(plain.step))


def test_half_precision_does_not_reach_the_loss() -> None:
    values = []
    for half in (False, True):
        case = setting()
        case.component.state = prototypes((0, 1, 2), 1)
        case.component.receive(case.site, {})
        with torch.autocast("cpu", torch.float16, enabled=half):
            values += case.component.loss(case.step).values()
    assert values[1].dtype == torch.float32
    assert torch.equal(*values)


def test_a_second_pass_sees_the_same_pixels_and_keeps_nothing() -> None:
    case = setting(pixels=3)
    case.component.state = prototypes((0, 1, 2), 1)
    case.component.receive(case.site, {})
    first = case.component.loss(case.step)
    after, kept = case.step.generator.get_state(), case.component._kept.rows
    again = case.component.loss(case.step)
    assert torch.equal(first["prototype_contrast_intra"], again["prototype_contrast_intra"])
    assert torch.equal(case.step.generator.get_state(), after)
    assert case.component._kept.rows is kept
    other = case.component.loss(another_step(case.step))
    assert not torch.equal(first["prototype_contrast_intra"], other["prototype_contrast_intra"])
    assert sum(map(len, case.component._kept.of_classes())) == 2 * 2 * 3 * 3


def test_the_projection_sees_sampled_pixels_only() -> None:
    case = setting(size=16, pixels=5)
    case.component.receive(case.site, {})
    seen: list[int] = []
    projection: nn.Module = case.network.extras["prototype_contrast"]
    projection.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].shape[:-1].numel()))
    case.component.loss(case.step)
    assert seen == [2 * 3 * 5]


# ---- sampling --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 4), st.integers(1, 50), st.integers(0, 999))
def test_as_many_different_pixels_of_each_class_as_there_are(
    batch: int, count: int, classes: int, pixels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (batch, count), generator=generator)
    positions, real = draw_pixels_by_class(labels, classes, pixels, generator)
    for image in range(batch):
        for one in range(classes):
            chosen = positions[image, one][real[image, one]].tolist()
            members = (labels[image] == one).nonzero().flatten().tolist()
            assert len(chosen) == len(set(chosen)) == min(pixels, len(members))
            assert set(chosen) <= set(members)


def test_every_pixel_of_a_class_is_drawn_equally_often() -> None:
    labels = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0]]).expand(4000, -1)
    positions, real = draw_pixels_by_class(labels, 2, 2, torch.Generator().manual_seed(0))
    assert real.all()
    counts = torch.bincount(positions[:, 1].flatten(), minlength=8) / 4000
    torch.testing.assert_close(counts, (labels[0] == 1).float() * 2 / 5, atol=0.04, rtol=0)


def test_the_reservoir_is_bounded_and_uniform() -> None:
    generator = torch.Generator().manual_seed(0)
    reservoir = Reservoir(500, 2, 1, torch.device("cpu"))
    for number in range(20):
        rows = torch.arange(100.0).add(100 * number).expand(2, 2, 100)[..., None]
        real = torch.stack([torch.ones(2, 100), torch.arange(100).expand(2, 100) < 3], dim=1).bool()
        reservoir.add(rows, real, generator, torch.tensor([number, number]))
    every, few = reservoir.of_classes()
    for values, cases in zip((every, few), reservoir.cases_of_classes(), strict=True):
        assert torch.equal(cases, (values.flatten() // 100).long())
    assert every.shape == (500, 1)
    assert abs(float(every.mean()) - 999.5) < 80  # a sample of the first or last batches would be hundreds away
    assert sorted(few.flatten().tolist()) == [float(100 * n + k) for n in range(20) for k in range(3) for _ in "ab"]


# ---- clustering ------------------------------------------------------------------------------------------------------


def test_kmeans_finds_separate_groups_and_is_at_rest_there() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.eye(6)[:, :4].repeat(1, 2) * 5 + 3 * torch.arange(6.0)[:, None]
    rows = groups.repeat_interleave(10, 0) + 0.05 * torch.randn(60, 8, generator=generator)
    centres = kmeans(rows, 6, generator)
    wanted = rows.reshape(6, 10, 8).mean(1)
    order = (centres[:, None] - wanted).norm(dim=2).argmin(0)
    torch.testing.assert_close(centres[order], wanted)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 999))
def test_every_centre_is_the_mean_of_the_rows_nearest_to_it(count: int, clusters: int, seed: int) -> None:
    rows = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    centres = kmeans(rows, clusters, torch.Generator().manual_seed(seed), iterations=200)
    again = kmeans(rows, clusters, torch.Generator().manual_seed(seed), iterations=200)
    assert torch.equal(centres, again)
    assert len(centres) == min(clusters, count)
    nearest = [min(range(len(centres)), key=lambda k, row=row: float((row - centres[k]).norm())) for row in rows]
    for k in range(len(centres)):
        members = rows[[i for i, n in enumerate(nearest) if n == k]]
        if len(members):
            torch.testing.assert_close(centres[k], members.mean(0), rtol=1e-4, atol=1e-5)


def test_fewer_rows_than_clusters_equal_rows_and_none() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 4, generator=generator)
    few = kmeans(rows[:3], 8, generator)
    assert sorted(few.tolist()) == sorted(rows[:3].tolist())
    assert kmeans(rows[:1].expand(9, -1), 8, generator).tolist() == rows[:1].tolist()
    assert kmeans(rows[:0], 8, generator).shape == (0, 4)
    torch.testing.assert_close(kmeans(rows, 1, generator), rows.mean(0, keepdim=True))


# ---- a round ---------------------------------------------------------------------------------------------------------


SHORT = "fedcontrast(channels=6)"
TWO = {"rounds": 2}


def two_class_server(folder: Path, dims: int = 2) -> Any:
    """The site ``south`` has no label beyond 1, so that this is a task of two classes."""
    recipe = tiny_recipe(SHORT, training=TWO)
    workspace = build_workspace(recipe, Task(("background", "disc"), 2, dims))
    return tiny_server(folder, recipe, dims, {"south": 3}, Keeper(), workspace)


@pytest.mark.parametrize("dims", [2, 3])
def test_two_classes_give_nine_prototypes(dims: int, tmp_path: Path) -> None:
    server = two_class_server(tmp_path, dims)
    server.round()
    shared = server.state.shared["prototype_contrast"]
    assert shared["prototypes"].shape == (9, 6)
    assert shared["classes"].tolist() == [0] + [1] * 8
    assert shared["owners"].tolist() == [owner_number("south")] * 9
    assert (shared["prototypes"].norm(dim=1) <= 1 + 1e-6).all()
    memory = server.engine.sites["south"].store.load(before=99).components["prototype_contrast"]
    assert_same(memory, {name: shared[name] for name in ("prototypes", "classes")})


def test_prototypes_are_the_clusters_of_the_last_epochs_embeddings() -> None:
    """With as many clusters as pixels nothing is averaged: the prototypes are the units that were seen."""
    case = setting(size=4, foreground=50, background=50)
    case.component.state = prototypes((0, 1), 1)
    case.component.receive(case.site, {})
    early = another_step(case.step, last_epoch=False)
    early.output = Features([], [torch.rand(2, 4, 4, 4)], case.step.output.logits)
    assert case.component.loss(early)
    case.component.loss(case.step)
    shared = case.component.share(case.site)
    maps = case.step.output.decoder[-1].flatten(2).transpose(1, 2).flatten(0, 1)
    units = nn.functional.normalize(case.network.extras["prototype_contrast"](maps), dim=1).detach()
    labels = case.step.labels.flatten()
    assert shared["classes"].unique().tolist() == [0, 1, 2]
    for one in range(3):
        distances = torch.cdist(shared["prototypes"][shared["classes"] == one], units[labels == one])
        assert distances.amin(0).max() < 1e-5
        assert distances.amin(1).max() < 1e-5


def test_the_background_is_the_mean_of_its_units_and_the_number_of_samples_is_bounded() -> None:
    case = setting(size=4)
    case.component.receive(case.site, {})
    case.component.loss(case.step)
    kept = case.component._kept.of_classes()[0]
    shared = case.component.share(case.site)
    torch.testing.assert_close(shared["prototypes"][0], kept.mean(0))
    bounded = setting(size=4, samples=3)
    bounded.component.receive(bounded.site, {})
    for bounded.step.index in range(4):
        bounded.component.loss(bounded.step)
    assert [len(rows) for rows in bounded.component._kept.of_classes()] == [3, 3, 3]


def test_a_class_without_samples_gives_none_and_a_site_without_images_an_empty_set(tmp_path: Path) -> None:
    case = setting()
    case.step.labels[case.step.labels == 1] = 2
    case.component.receive(case.site, {})
    case.component.loss(case.step)
    assert case.component.share(case.site)["classes"].unique().tolist() == [0, 2]
    empty = setting()
    empty.component.receive(empty.site, {})
    shared = empty.component.share(empty.site)
    assert shared["prototypes"].shape == (0, CHANNELS)
    declared = {one.name: one for one in empty.component.leaves(empty.network)}
    assert declared.keys() == shared.keys()
    assert all(declared[name].accepts(tensor) for name, tensor in shared.items())
    for message in (Broadcast(1, {}, {"c": broadcast(north=shared, west=shared)}), Broadcast(1, {}, {"c": shared})):
        save_message(tmp_path / "message", message)
        assert_same(load_message(tmp_path / "message").shared["c"], message.shared["c"])
    empty.component.receive(empty.site, broadcast(north=shared, west=shared))
    assert not empty.component._banks


def test_the_terms_begin_in_the_second_round_and_the_inter_term_leaves_out_the_own_site(tmp_path: Path) -> None:
    server: Any = tiny_server(tmp_path, tiny_recipe(SHORT, training=TWO), observer=Keeper())
    server.fit()
    intra, inter = "prototype_contrast_intra", "prototype_contrast_inter"
    found = [{name for terms in event["losses"].values() for name in terms} for event in server.observer.events]
    assert found == [{"segmentation"}, {"segmentation", intra, inter}]
    owners = server.state.shared["prototype_contrast"]["owners"].tolist()
    assert sorted(set(owners), key=owners.index) == [owner_number(site) for site in ("north", "south", "west")]
    alone = two_class_server(tmp_path / "alone")
    alone.fit()
    assert alone.observer.events[-1]["losses"]["south"].keys() == {"segmentation", intra}


def test_no_forward_pass_is_added(tmp_path: Path) -> None:
    server = two_class_server(tmp_path)
    passes, encode = [], server.workspace.network.encode
    server.workspace.network.encode = lambda images: passes.append(1) or encode(images)
    (update,) = server.engine.train(Broadcast(0, server.state.weights), ["south"])
    assert len(passes) == update.steps == 4


def test_without_weights_it_is_fedavg_bit_for_bit_and_shares_nothing(tmp_path: Path) -> None:
    off = tiny_server(tmp_path / "off", tiny_recipe("fedcontrast(intra_weight=0, inter_weight=0)", training=TWO))
    off.fit()
    plain = tiny_server(tmp_path / "fedavg", tiny_recipe("fedavg", training=TWO))
    plain.fit()
    assert_same(final_tensors(off), final_tensors(plain))
    assert off.workspace.declared()["prototype_contrast"] == ()
    assert not off.state.shared
    on = tiny_server(tmp_path / "on", tiny_recipe("fedcontrast", training=TWO))
    on.fit()
    assert not torch.equal(on.state.weights["classifier.weight"], off.state.weights["classifier.weight"])


@pytest.mark.parametrize(("kept", "shared"), [("intra", False), ("inter", True)])
def test_prototypes_leave_only_for_the_inter_term_and_stay_only_for_the_intra_term(
    kept: str, shared: bool, tmp_path: Path
) -> None:
    other = "inter" if kept == "intra" else "intra"
    method = f"fedcontrast(channels=6, {other}_weight=0)"
    server: Any = tiny_server(tmp_path, tiny_recipe(method, training=TWO), observer=Keeper())
    server.fit()
    assert ("prototype_contrast" in server.state.shared) == shared
    assert bool(server.workspace.declared()["prototype_contrast"]) == shared
    state = server.engine.sites["south"].store.load(before=99)
    assert ("prototype_contrast" in state.components) != shared
    assert server.observer.events[-1]["losses"]["south"].keys() == {"segmentation", f"prototype_contrast_{kept}"}


def test_a_diverged_training_is_reported_as_one() -> None:
    case = setting()
    case.component.receive(case.site, {})
    case.step.output.decoder[-1] = case.step.output.decoder[-1] * math.nan
    case.component.loss(case.step)
    assert case.component.share(case.site)["prototypes"].isnan().all()


def test_a_map_that_is_not_there_gets_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"prototype_contrast\(feature=decoder7\)"):
        setting(feature="decoder7")


# ---- the process-aware mean ------------------------------------------------------------------------------------------
