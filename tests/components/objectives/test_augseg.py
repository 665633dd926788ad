from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mixed_sites import mixed_site
from polyclinic.components.base import Component
from polyclinic.components.objectives import augseg
from polyclinic.components.objectives.augseg import AugSeg, certainty
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.unlabelled import intensity_pool
from polyclinic.components.toolbox.unlabelled.cutmix import draw_beta, draw_boxes
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.networks.unet import UNet
from polyclinic.recipe import Recipe
from support import (
    Interrupted,
    Keeper,
    Killer,
    assert_same,
    final_tensors,
    tiny_recipe,
    tiny_server,
    tiny_task,
)

CPU = torch.device("cpu")


def site_of(workspace: Workspace, dims: int = 2) -> SiteRound:
    received = {n: t.detach().clone() for n, t in workspace.network.state_dict().items()}
    return SiteRound(
        "north", 1, workspace.network, received, mixed_site("north", 3, 2, dims), CPU, torch.Generator(), 3
    )


def prepared(expression: str, dims: int = 2) -> tuple[AugSeg, SiteRound]:
    workspace = build_workspace(tiny_recipe(expression), tiny_task(dims))
    (component,) = (c for c in workspace.fresh_components({}) if isinstance(c, AugSeg))
    site = site_of(workspace, dims)
    component.receive(site, {})
    site.network.train()
    return component, site


def step_of(site: SiteRound, labelled: int = 2, unlabelled: int = 3, seed: int = 0) -> Step:
    images, labels = site.data.images.batch(torch.arange(labelled + unlabelled))
    generator = torch.Generator().manual_seed(seed)
    step = Step(site, site.network, images[:labelled], labels[:labelled], generator, 1, 0, 0, True, 0.5, 0.1)
    if unlabelled:
        step.weak = images[labelled:]
        step.strong = step.weak + 100  # what the recipe made, and the component replaces
    return step


def run(component: Component, step: Step) -> dict[str, torch.Tensor]:
    component.on_images(step)
    step.output = step.network.features(step.inputs)
    return component.loss(step)


Believe = Callable[[torch.Tensor], torch.Tensor]


def let_the_teacher_say(monkeypatch: pytest.MonkeyPatch, say: Believe) -> None:
    monkeypatch.setattr(augseg, "probabilities", lambda _, images: say(images))


def random_beliefs(images: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return (2 * torch.randn(len(images), 3, *images.shape[2:], generator=generator)).softmax(1)


def sure_of_class_two(images: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(len(images), 3, *images.shape[2:])
    found[:, 2] = 1
    return found


def without_a_clue(images: torch.Tensor) -> torch.Tensor:
    return torch.full((len(images), 3, *images.shape[2:]), 1 / 3)


# ---- equations -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(2, 5), st.sampled_from([2, 3]), st.integers(0, 10**6))
def test_certainty_is_equation_3(batch: int, classes: int, dims: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    found = (3 * torch.randn(batch, classes, *[3] * dims, generator=generator)).softmax(1)
    for image, ours in zip(found, certainty(found).tolist(), strict=True):
        scores = []
        for pixel in image.flatten(1).T.tolist():
            entropy = -sum(p * math.log(p) for p in pixel)
            scores.append((1 - entropy / math.log(classes)) * max(pixel))
        assert ours == pytest.approx(sum(scores) / len(scores), abs=1e-5)


def test_certainty_runs_from_zero_to_one() -> None:
    images = torch.zeros(1, 1, 2, 2)
    assert float(certainty(sure_of_class_two(images))) == pytest.approx(1, abs=1e-6)
    assert float(certainty(without_a_clue(images))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("labelled", "unlabelled"), [(3, 4), (4, 3), (1, 1), (0, 3)])
@pytest.mark.parametrize("mix", ["adaptive", "unlabelled", "none"])
def test_views_targets_and_loss_are_those_of_loops_over_images_and_pixels(
    monkeypatch: pytest.MonkeyPatch, dims: int, labelled: int, unlabelled: int, mix: str
) -> None:
    let_the_teacher_say(monkeypatch, random_beliefs)
    component, site = prepared(f"augseg(mix={mix}, weight=0.7, threshold=0.6)", dims)
    step = step_of(site, labelled, unlabelled)
    assert step.weak is not None
    terms = run(component, step)

    generator = torch.Generator().manual_seed(0)
    views = intensity_pool.perturb(step.weak, generator)
    beliefs = random_beliefs(step.weak)
    confidence, labels = beliefs.max(1)
    rho = certainty(beliefs)
    spatial = views.shape[2:]
    if mix != "none":
        partners = torch.randperm(unlabelled, generator=generator).tolist()
        copies = views.clone(), labels.clone(), confidence.clone()
        if mix == "adaptive" and labelled:
            coins = torch.rand(unlabelled, generator=generator)
            share = 1 - draw_beta(8, 2, generator)
            boxes = draw_boxes(unlabelled, spatial, share, generator)
            for i in range(unlabelled):
                if coins[i] > rho[i]:
                    donor = partners[i] % labelled
                    copies[0][i][:, boxes[i]] = step.images[donor][:, boxes[i]]
                    copies[1][i][boxes[i]] = step.labels[donor][boxes[i]]
                    copies[2][i][boxes[i]] = 1.0
        boxes = draw_boxes(unlabelled, spatial, 1 - draw_beta(4, 4, generator), generator)
        views, labels, confidence = views.clone(), labels.clone(), confidence.clone()
        for i in range(unlabelled):
            views[i][:, boxes[i]] = copies[0][partners[i]][:, boxes[i]]
            labels[i][boxes[i]] = copies[1][partners[i]][boxes[i]]
            confidence[i][boxes[i]] = copies[2][partners[i]][boxes[i]]
    assert step.strong is not None
    assert torch.equal(step.strong, views)
    logits = step.output.logits[labelled:]
    total = torch.zeros(())
    for i in range(unlabelled):
        for pixel in torch.ones(spatial).nonzero().tolist():
            if confidence[(i, *pixel)] >= 0.6:
                scores = logits[(i, slice(None), *pixel)]
                total = total + scores.exp().sum().log() - scores[labels[(i, *pixel)]]
    torch.testing.assert_close(terms["augseg"], 0.7 * total / labels.numel())
    assert 0 < (confidence >= 0.6).float().mean() < 1


def test_labelled_boxes_go_where_the_teacher_is_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    for name, say in (("sure", sure_of_class_two), ("unsure", without_a_clue)):
        let_the_teacher_say(monkeypatch, say)
        component, site = prepared("augseg(operations=0)")
        seen[name] = []
        for seed in range(20):
            step = step_of(site, 2, 3, seed)
            step.images = step.images + 50
            component.on_images(step)
            assert step.strong is not None
            assert component._targets is not None
            labels, mask = component._targets
            pasted = (step.strong > 25).all(1)
            seen[name].append(bool(pasted.any()))
            if name == "sure":
                assert (labels == 2).all()
                assert mask.all()
            else:
                assert torch.equal(mask, pasted)
    assert not any(seen["sure"])
    assert sum(seen["unsure"]) > 10


def test_a_pasted_pixel_has_the_label_of_the_image_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    let_the_teacher_say(monkeypatch, without_a_clue)
    component, site = prepared("augseg(operations=0)")
    found = 0
    for seed in range(10):
        step = step_of(site, 2, 3, seed)
        # The label can be read from the image.
        step.images = 50.0 + step.labels.unsqueeze(1).expand_as(step.images)
        component.on_images(step)
        assert step.strong is not None
        assert component._targets is not None
        labels, mask = component._targets
        assert torch.equal(labels[mask], (step.strong[:, 0][mask] - 50).long())
        found += int((labels[mask] > 0).sum())
    assert found > 10


def test_the_teacher_is_the_mean_of_received_and_trained_models_and_then_slow() -> None:
    component, site = prepared("augseg(ema=0.6)")
    name = "classifier.weight"
    values = [float(site.received[name].flatten()[0])]
    for number in range(5):
        step = step_of(site)
        with torch.no_grad():
            site.network.get_parameter(name).fill_(float(number))
        component.after_step(step)
        keep = min(1 - 1 / (number + 2), 0.6)
        values.append(keep * values[-1] + (1 - keep) * number)
        found = component._teacher.network.get_parameter(name).flatten()[0]
        torch.testing.assert_close(float(found), values[-1], rtol=1e-5, atol=1e-6)
    assert not component._teacher.network.training
    assert not any(p.requires_grad for p in component._teacher.network.parameters())


def test_the_teacher_starts_anew_each_round_or_stays() -> None:
    for teacher in ("reset", "keep"):
        component, site = prepared(f"augseg(teacher={teacher}, ema=0.6)")
        with torch.no_grad():
            site.network.get_parameter("classifier.weight").add_(1)
        component.after_step(step_of(site))
        assert component.share(site) == {}
        kept = component._teacher.network.get_parameter("classifier.weight").clone()
        later = AugSeg(component.settings, component.context, dict(component.state))
        later.receive(site, {})
        found = later._teacher.network.get_parameter("classifier.weight")
        assert torch.equal(found, kept if teacher == "keep" else site.received["classifier.weight"])
        assert later._teacher.steps == (1 if teacher == "keep" else 0)
        assert bool(component.state) == (teacher == "keep")


# ---- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("labelled", "unlabelled"), [(0, 3), (2, 0), (1, 1), (3, 1)])
def test_sites_with_one_kind_of_images_and_batches_of_one(dims: int, labelled: int, unlabelled: int) -> None:
    component, site = prepared("augseg(threshold=0)", dims)
    step = step_of(site, labelled, unlabelled)
    terms = run(component, step)
    assert terms.keys() == ({"augseg"} if unlabelled else set())
    if unlabelled:
        terms["augseg"].backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in site.network.parameters())


def test_no_sure_pixel_means_no_loss_and_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    let_the_teacher_say(monkeypatch, without_a_clue)
    component, site = prepared("augseg(mix=unlabelled)")
    term = run(component, step_of(site))["augseg"]
    assert term == 0
    term.backward()
    assert all(p.grad is None or not p.grad.any() for p in site.network.parameters())


def test_a_second_pass_over_a_step_uses_the_same_targets() -> None:
    component, site = prepared("augseg(threshold=0)")
    step = step_of(site)
    first = run(component, step)["augseg"]
    step.output = step.network.features(step.inputs)
    torch.testing.assert_close(component.loss(step)["augseg"], first)


def test_a_step_without_unlabelled_images_has_no_term_of_the_step_before() -> None:
    component, site = prepared("augseg(threshold=0)")
    assert run(component, step_of(site)).keys() == {"augseg"}
    assert run(component, step_of(site, 2, 0)) == {}


def test_weight_zero_draws_nothing_and_has_no_teacher() -> None:
    component, site = prepared("augseg(weight=0)")
    step = step_of(site)
    strong, state = step.strong, step.generator.get_state()
    assert run(component, step) == {}
    component.after_step(step)
    component.share(site)
    assert step.strong is strong
    assert torch.equal(step.generator.get_state(), state)
    assert component._teacher is None
    assert component.state == {}


@pytest.mark.parametrize(
    ("task", "intensity", "setting", "wanted"),
    [
        (Task(("a", "b"), 3, 2), "full-range", "auto", (True, True)),
        (Task(("a", "b"), 3, 2), "z-score", "auto", (False, False)),
        (Task(("a", "b"), 3, 2), "z-score", "true", (True, False)),
        (Task(("a", "b"), 3, 2), "zero-one", "false", (False, True)),
        (Task(("a", "b"), 3, 2, neighbours=1), "zero-one", "auto", (False, True)),
        (Task(("a", "b"), 3, 3), "none", "auto", (False, False)),
        (Task(("a", "b"), 1, 2), "percentile", "auto", (False, True)),
    ],
)
def test_colours_are_for_colour_images(task: Task, intensity: str, setting: str, wanted: tuple[bool, bool]) -> None:
    workspace = build_workspace(tiny_recipe(f"augseg(colour={setting})", data={"intensity": intensity}), task)
    (component,) = (c for c in workspace.fresh_components({}) if isinstance(c, AugSeg))
    assert component._scale() == wanted


def test_colours_of_two_channels_get_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match="2 channels and colours need 3"):
        build_workspace(tiny_recipe("augseg(colour=true)"), tiny_task())


# ---- through a run ---------------------------------------------------------------------------------------------------


def semi_server(folder: Path, recipe: Recipe, dims: int = 2, **more: Any) -> Server:
    """One site with both kinds of images, one with unlabelled, one with labelled ones alone."""
    server = tiny_server(folder, recipe, dims, **more)
    sites = server.engine.sites  # type: ignore[attr-defined]
    sites["north"].data.images.labelled[:3] = False
    sites["south"].data.images.labelled[:] = False
    return server


@pytest.mark.parametrize(("dims", "teacher"), [(2, "reset"), (3, "keep")])
def test_few_labels_train_repeat_and_resume(dims: int, teacher: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(f"augseg(teacher={teacher}, threshold=0.4)", training={"rounds": 2, "local_epochs": 1})
    whole = semi_server(tmp_path / "whole", recipe, dims, observer=(keeper := Keeper()))
    whole.fit()
    assert not keeper.refusals
    losses = keeper.events[0]["losses"]
    assert losses["north"].keys() == {"segmentation", "augseg"}
    assert losses["south"].keys() == {"augseg"}
    assert losses["west"].keys() == {"segmentation"}
    assert losses["south"]["augseg"] > 0
    killer = Killer(lambda what, number, _: what == "round" and number == 1)
    with pytest.raises(Interrupted):
        semi_server(tmp_path / "killed", recipe, dims, observer=killer).fit()
    resumed = semi_server(tmp_path / "killed", recipe, dims)
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))


def test_a_step_has_one_pass_of_each_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[tuple[bool, bool]] = []
    original = UNet.encode

    def counted(self: UNet, images: torch.Tensor) -> list[torch.Tensor]:
        passes.append((self.training, torch.is_grad_enabled()))
        return original(self, images)

    server = semi_server(tmp_path, tiny_recipe("augseg", training={"rounds": 1, "local_epochs": 1}))
    monkeypatch.setattr(UNet, "encode", counted)
    site = server.engine.sites["north"]  # type: ignore[attr-defined]
    update = site.train(server.workspace, Broadcast(0, server.state.weights))
    assert passes.count((True, True)) == update.steps
    assert passes.count((False, False)) == update.steps
    assert len(passes) == 2 * update.steps
