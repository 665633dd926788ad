from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import support
from polyclinic.components.objectives.class_distillation import (
    ClassDistillation,
    class_weights,
    observe,
    pooled,
    resemblance,
)
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.unlabelled.masked_losses import sharpen
from polyclinic.data.deformation import Deformation
from polyclinic.data.sitedata import SiteData
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from polyclinic.recipe import Recipe
from support import Interrupted, Keeper, Killer, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task

CPU = torch.device("cpu")
FIXED = {"strong": {"geometry": False}}
tiny_site = support.tiny_site


@torch.no_grad()
def shake(network: torch.nn.Module, seed: int, size: float = 1.2) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(size * (torch.rand(tensor.shape, generator=generator) - 0.5))


def half_labelled(name: str, count: int, dims: int = 2, size: int = 8) -> SiteData:
    """Every second training image has lost its label; a site of one image has it."""
    data = tiny_site(name, count, dims, size)
    data.images.labelled[1:count:2] = False
    data.images.labels[1:count:2] = 0  # type: ignore[attr-defined]
    return data


def prepared(
    method: str = "fedcd",
    dims: int = 2,
    count: int = 7,
    state: dict[str, torch.Tensor] | None = None,
    **sections: dict,  # type: ignore[type-arg]
) -> tuple[ClassDistillation, SiteRound]:
    """A component that has received, and a network that has moved since."""
    workspace = build_workspace(tiny_recipe(method, **sections), tiny_task(dims))
    shake(workspace.network, {2: 8, 3: 11}[dims])
    received = {n: t.detach().clone() for n, t in workspace.network.state_dict().items()}
    site = SiteRound(
        "north", 1, workspace.network, received, half_labelled("north", count, dims), CPU, torch.Generator(), 2
    )
    (component,) = (
        c for c in workspace.fresh_components({"class_distillation": state or {}}) if isinstance(c, ClassDistillation)
    )
    component.receive(site, {})
    shake(workspace.network, 40, 0.3)
    return component, site


def step_of(site: SiteRound, rows: Sequence[int] = (1, 3), progress: float = 0.5) -> Step:
    images, labels = site.data.images.batch(torch.tensor([0]))
    step = Step(site, site.network, images, labels, torch.Generator(), 1, 0, 0, True, progress, 0.1)
    step.unlabelled_indices = torch.tensor(rows)
    step.weak, _ = site.data.images.batch(step.unlabelled_indices)
    step.deformation = Deformation(step.weak.dim() - 2)
    step.strong = step.weak * 0.9 + 0.1
    site.network.train()
    step.output = site.network.features(step.inputs)
    return step


# ---- the equations, written out ------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
def test_resemblance_is_the_exponential_of_the_divergence(batch: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = (3 * torch.randn(batch, width, generator=generator) for _ in range(2))
    ours = resemblance(first, second)
    for row in range(batch):
        p, q = ([math.exp(v) / sum(map(math.exp, x[row].tolist())) for v in x[row].tolist()] for x in (first, second))
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert float(ours[row]) == pytest.approx(math.exp(-kl), rel=1e-4)
    torch.testing.assert_close(resemblance(first, first), torch.ones(batch))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=6), st.floats(0, 1), st.booleans())
def test_a_class_weighs_by_how_rare_it_is(counts: list[int], alpha: float, background: bool) -> None:
    ours = class_weights(torch.tensor(counts), alpha, background)
    classes = [k for k in range(0 if background else 1, len(counts)) if counts[k]]
    total = sum(counts[k] for k in classes)
    for k, weight in enumerate(ours.tolist()):
        wanted = 1 - alpha + alpha * total / (len(classes) * counts[k]) if k in classes else 1.0
        assert weight == pytest.approx(wanted, rel=1e-5)
    if classes:  # the mean over the counted pixels is 1, whatever alpha
        assert sum(counts[k] * float(ours[k]) for k in classes) == pytest.approx(total, rel=1e-5)


def naive_loss(
    step: Step,
    teachers: Sequence[UNet],
    counts: torch.Tensor,
    alpha: float,
    temperature: float,
    shares: Sequence[float],
) -> torch.Tensor:
    """Equations 2 to 5, image by image; the global teacher is the first."""
    assert step.weak is not None
    axes = tuple(range(2, step.weak.dim()))
    with torch.no_grad():
        seen = [teacher.eval().features(step.weak) for teacher in teachers]
    table = class_weights(counts, alpha, background=False)
    weights = table[seen[0].logits.argmax(1)]
    weights = weights / weights.mean()
    student = step.unlabelled
    total = step.weak.new_zeros(())
    for share, other in zip(shares, seen, strict=True):
        powers = other.logits.softmax(1) ** (1 / temperature)
        target = powers / powers.sum(1, keepdim=True)
        values = []
        for image in range(len(step.weak)):
            f = student.encoder[-1][image].detach().mean([a - 1 for a in axes]).softmax(0)
            g = other.encoder[-1][image].mean([a - 1 for a in axes]).softmax(0)
            trust = torch.exp(-(f * (f / g).log()).sum())
            gap = (student.logits[image].softmax(0) - target[image]).square().sum(0)
            values.append((weights[image] * trust * gap).flatten())
        total = total + share * torch.cat(values).mean()
    return total


def naive_counts(site: SiteRound) -> torch.Tensor:
    teacher, counts = site.frozen(), torch.zeros(3, dtype=torch.int64)
    for row in site.data.training_indices(False).tolist():
        for value in teacher(site.data.images.batch(torch.tensor([row]))[0]).argmax(1).flatten().tolist():
            counts[value] += 1
    return counts


def teacher_state(site: SiteRound, seed: int, steps: int) -> dict[str, torch.Tensor]:
    network = copy.deepcopy(site.network)
    shake(network, seed, 0.4)
    return {**{f"teacher/{n}": t.clone() for n, t in network.state_dict().items()}, "steps": torch.tensor(steps)}


@pytest.mark.parametrize("views", [{}, FIXED, {"augmentation": {"flip": 0.5}}])
@pytest.mark.parametrize("dims", [2, 3])
def test_the_loss_and_its_gradients_are_those_of_the_equations(dims: int, views: dict) -> None:  # type: ignore[type-arg]
    method = "fedcd(weight=0.7, global_weight=0.3, local_weight=0.6, temperature=0.4, alpha_start=0.2, alpha_end=0.8)"
    _, other = prepared(method, dims)
    state = teacher_state(other, 3, 17)
    component, site = prepared(method, dims, state=state, **views)
    assert component.context.fixed_views == ("augmentation" not in views)
    local = site.frozen({n.removeprefix("teacher/"): t for n, t in state.items() if n != "steps"})
    counts = naive_counts(site)
    assert torch.equal(component._counts, counts)
    assert (counts > 0).all()
    step = step_of(site, progress=0.25)
    wanted = 0.7 * naive_loss(step, [site.frozen(), local], counts, 0.2 + 0.25 * 0.6, 0.4, (0.3, 0.6))  # type: ignore[list-item]
    (ours,) = component.loss(step).values()
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-6)
    parameters = list(site.network.parameters())
    gradients = [torch.autograd.grad(t, parameters, retain_graph=True, allow_unused=True) for t in (ours, wanted)]
    assert any(b is not None and b.abs().max() > 1e-4 for b in gradients[1])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_the_first_round_starts_both_teachers_at_the_received_model() -> None:
    component, site = prepared()
    step = step_of(site)
    component.loss(step)
    first, second = step.once("class_distillation/targets", lambda: pytest.fail("the targets were made in the loss"))
    torch.testing.assert_close(first[0], second[0])
    torch.testing.assert_close(first[1], second[1])


def test_the_local_teacher_moves_warms_up_and_stays_at_the_site() -> None:
    component, site = prepared("fedcd(ema=0.6)")
    names = [n for n, _ in site.network.named_parameters()]
    wanted = {n: site.received[n].clone() for n in names}
    for number in range(4):
        shake(site.network, number, 0.2)
        component.after_step(step_of(site))
        keep = min(1 - 1 / (number + 1), 0.6)
        wanted = {n: keep * wanted[n] + (1 - keep) * site.network.state_dict()[n] for n in names}
    assert component.share(site) == {}
    assert int(component.state["steps"]) == 4
    for n in names:
        torch.testing.assert_close(component.state[f"teacher/{n}"], wanted[n])
    later, again = prepared("fedcd(ema=0.6)", state=component.state)
    for n, tensor in later._local.network.state_dict().items():  # type: ignore[union-attr]
        assert torch.equal(tensor, component.state[f"teacher/{n}"])
    later.after_step(step_of(again))
    assert later._local.steps == 5  # type: ignore[union-attr]


def test_a_class_that_is_never_seen_and_one_class_alone_give_finite_numbers() -> None:
    component, site = prepared()
    with torch.no_grad():
        component._global.network.classifier.bias[2] -= 1e4
    component._counts[:] = torch.tensor([10, 0, 0])
    (term,) = component.loss(step_of(site)).values()
    term.backward()
    assert term.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in site.network.parameters())


# ---- passes, patches, sites of other kinds -------------------------------------------------------------------------


def count_passes(monkeypatch: pytest.MonkeyPatch, trained: torch.nn.Module) -> list[UNet]:
    calls: list[UNet] = []
    encode = UNet.encode

    def counting(network: UNet, images: torch.Tensor) -> list[torch.Tensor]:
        if network is not trained:
            assert not network.training
            assert not torch.is_grad_enabled()
            calls.extend([network] * len(images))
        return encode(network, images)

    monkeypatch.setattr(UNet, "encode", counting)
    return calls


@pytest.mark.parametrize(("sections", "in_a_step"), [(FIXED, 2), ({"augmentation": {"flip": 0.5}}, 4)])
def test_the_global_teacher_looks_once_where_views_stay(
    sections: dict,  # type: ignore[type-arg]
    in_a_step: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    component, site = prepared(**sections)
    calls = count_passes(monkeypatch, site.network)
    component.receive(site, {})
    assert len(calls) == 3
    calls.clear()
    step = step_of(site)
    first, second = component.loss(step), component.loss(step)
    assert len(calls) == in_a_step
    assert torch.equal(first["class_distillation"], second["class_distillation"])


def test_patches_are_counted_step_by_step() -> None:
    component, site = prepared(data={"patch": [6, 6]})
    assert not component._counts.any()
    wanted, teacher = torch.zeros(3, dtype=torch.int64), site.frozen()
    for start in (0, 2):
        step = step_of(site)
        step.weak, step.strong = (view[..., start : start + 6, :6] for view in (step.weak, step.strong))  # type: ignore[index]
        step.output = site.network.features(torch.cat([step.images[..., :6, :6], step.strong]))
        for _ in range(2):
            (term,) = component.loss(step).values()
        wanted += torch.bincount(teacher(step.weak).argmax(1).flatten(), minlength=3)
        assert torch.equal(component._counts, wanted)
        assert term > 0


def test_a_site_without_unlabelled_images_and_strength_zero_keep_nothing() -> None:
    for method, count in (("fedcd", 1), ("fedcd(weight=0)", 7)):
        component, site = prepared(method, count=count)
        step = step_of(site, (0,))
        assert component.loss(step) == {}
        component.after_step(step)
        assert component.share(site) == {}
        assert component.state == {}


def test_half_precision_stays_outside_the_loss() -> None:
    component, site = prepared(**FIXED)
    step = step_of(site)
    step.output.logits, step.output.encoder[-1] = step.output.logits.bfloat16(), step.output.encoder[-1].bfloat16()
    (full,) = component.loss(step).values()
    with torch.autocast("cpu", torch.bfloat16):
        (term,) = component.loss(step).values()
    assert term.dtype == torch.float32
    assert torch.equal(term, full)


def test_one_pass_gives_probabilities_and_pooled_features() -> None:
    _, site = prepared()
    network, images = site.frozen(), site.data.images.batch(torch.arange(2))[0]
    probabilities, vectors = observe(network, images)
    torch.testing.assert_close(probabilities, network(images).softmax(1))
    torch.testing.assert_close(vectors, network.encode(images)[-1].mean((2, 3)))
    assert torch.equal(vectors, pooled(network.encode(images)[-1]))
    assert not probabilities.requires_grad
    torch.testing.assert_close(sharpen(probabilities, 1.0), probabilities)


# ---- runs ----------------------------------------------------------------------------------------------------------


class Rebuilding(InProcess):
    """Builds network, components and site anew from the saved state for every site and round."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for name in sites:
            old = self.sites[name]
            fresh = Site(old.data, type(old.store)(old.store.folder))
            yield from InProcess(build_workspace(self.workspace.recipe, self.workspace.task), {name: fresh}).train(
                broadcast, [name]
            )


@pytest.mark.parametrize("views", [{"geometry": False}, {}])
def test_a_run_repeats_resumes_and_differs_from_fedavg(
    views: dict,  # type: ignore[type-arg]
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(support, "tiny_site", half_labelled)

    def recipe(method: str = "fedcd") -> Recipe:
        training = {"rounds": 2, "local_epochs": 1}
        return tiny_recipe(method, augmentation={"flip": 0.5, "affine": 0.5}, strong=views, training=training)

    server = tiny_server(tmp_path / "first", recipe(), observer=(keeper := Keeper()))
    server.fit()
    first = final_tensors(server)
    assert not keeper.refusals
    assert any("north/class_distillation/teacher/" in name for name in first)
    assert not any("west/class_distillation/" in name for name in first)
    assert all(event["losses"]["north"]["class_distillation"] > 0 for event in keeper.events)
    again = tiny_server(tmp_path / "again", recipe(), engine=Rebuilding)
    again.fit()
    assert_same(first, final_tensors(again))
    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "cut", recipe(), observer=Killer(lambda what, n, _: (what, n) == ("site", 1))).fit()
    resumed = tiny_server(tmp_path / "cut", recipe())
    resumed.fit()
    assert_same(first, final_tensors(resumed))
    other = tiny_server(tmp_path / "other", recipe("fedcd(weight=0)"))
    other.fit()
    assert any(not torch.equal(other.state.weights[n], t) for n, t in server.state.weights.items())


def test_sites_with_no_label_at_all_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlabelled(name: str, count: int, dims: int = 2) -> SiteData:
        return tiny_site(name, count, dims, labelled=name != "south")

    monkeypatch.setattr(support, "tiny_site", unlabelled)
    recipe = tiny_recipe("fedcd", training={"rounds": 2, "local_epochs": 1})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert keeper.events[1]["losses"]["south"].keys() == {"class_distillation"}
