from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mixed_sites import MIXED, component_of, mixed_server, mixed_site, mixed_step, shake, site_round
from polyclinic.components.objectives.dual_teacher import DualTeacher
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.networks.unet import UNet
from support import Interrupted, Keeper, Killer, assert_same, final_tensors, tiny_recipe, tiny_task

DR = "fedavg+dual_teacher"
MOVING = {"augmentation": {"flip": 0.5}}
SHORT = {"local_epochs": 1, "rounds": 2, "validate_every": 2}
Whole = tuple[Any, dict[str, Tensor]]


def prepared(
    settings: str = "",
    counts: tuple[int, int] = (3, 2),
    dims: int = 2,
    state: dict[str, Tensor] | None = None,
    **sections: Any,
) -> tuple[Any, SiteRound, Workspace]:
    """The component at the start of a round, with a network that has moved on since."""
    sections = {"network": {"width": 6, "depth": 1}, **sections}
    workspace = build_workspace(tiny_recipe(f"{DR}({settings})", **sections), tiny_task(dims))
    with torch.no_grad():
        workspace.network.classifier.weight.mul_(8)  # so that pixels differ
    shake(workspace.network, 1)
    site = site_round(workspace, mixed_site("north", *counts, dims))
    component = component_of(workspace, "dual_teacher", state)
    component.receive(site, {})
    shake(workspace.network, 2)
    return component, site, workspace


def entropies(probabilities: Tensor) -> Tensor:
    """``(batch, class, *spatial)`` to ``(batch, *spatial)``, class by class."""
    total = torch.zeros_like(probabilities[:, 0])
    for p in probabilities.unbind(1):
        total = total - p * torch.log(p + 1e-8)
    return total


def naive_quantile(values: Tensor, level: float) -> float:
    ordered = sorted(values.flatten().tolist())
    place = level * (len(ordered) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


def naive_loss(logits: Tensor, labels: Tensor, mask: Tensor, with_dice: bool = True) -> Tensor:
    """Equation 8, with cross-entropy over all pixels and the Dice of each image and class, on the mask alone."""
    p, classes = logits.softmax(1), logits.shape[1]
    ce = sum(-(p[:, c].log() * (labels == c) * mask).sum() for c in range(classes)) / mask.numel()
    if not with_dice:
        return ce
    dice = []
    for image in range(len(p)):
        for c in range(classes):
            a, t = p[image, c][mask[image]], (labels[image] == c)[mask[image]].float()
            dice.append(1 - (2 * (a * t).sum() + 1e-5) / (a.sum() + t.sum() + 1e-5))
    return ce + sum(dice) / len(dice)


# ---- equations 6 to 9 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dims", "level"), [(2, 0.9), (3, 0.6)])
@pytest.mark.parametrize("sections", [{}, MOVING], ids=["fixed", "moving"])
def test_the_term_is_that_of_two_whole_networks(dims: int, level: float, sections: dict[str, Any]) -> None:
    """Static and dynamic teacher as independent copies, two steps apart: value and gradient of every weight."""
    settings = f"weight=0.7, ema=0.6, delta_start={level}, delta_end={level}, smoothing=0"
    component, site, _ = prepared(settings, dims=dims, **sections)
    assert component.context.fixed_views == (not sections)
    static = site.frozen()
    average = {n: t.double() for n, t in static.named_parameters()}
    network = site.network
    for seed in (3, 4):
        shake(network, seed)
        component.after_step(mixed_step(site, forward=False))
        average = {n: 0.6 * average[n] + 0.4 * p.detach().double() for n, p in network.named_parameters()}
    dynamic = copy.deepcopy(network)
    dynamic.load_state_dict({**network.state_dict(), **{n: t.float() for n, t in average.items()}})

    step = mixed_step(site)
    (ours,) = component.loss(step).values()
    assert step.weak is not None
    with torch.no_grad():
        p_s, p_d = (one.eval()(step.weak).softmax(1) for one in (static, dynamic))
        fused = (p_s + p_d) / 2
        uncertainty = (entropies(p_s) + entropies(p_d)) / 2
        threshold = naive_quantile(entropies(step.labelled.logits.softmax(1)), level)
    mask = uncertainty <= threshold
    assert 0.1 < mask.float().mean() < 0.999
    wanted = 0.7 * naive_loss(step.unlabelled.logits, fused.argmax(1), mask)
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-6)
    gradients = [torch.autograd.grad(t, list(network.parameters()), retain_graph=True) for t in (ours, wanted)]
    assert any(g.abs().max() > 1e-3 for g in gradients[1])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("with_dice", [True, False])
def test_a_quantile_of_each_class_keeps_pixels_of_each_class(with_dice: bool) -> None:
    """Labelled pixels of a class give the threshold of the pixels that the teachers say are of that class."""
    settings = f"weight=1, delta_start=0.7, delta_end=0.7, smoothing=0, quantiles=class, dice={str(with_dice).lower()}"
    component, site, _ = prepared(settings)
    step = mixed_step(site)
    (ours,) = component.loss(step).values()
    values = entropies(step.labelled.logits.detach().softmax(1))
    found = component.state["threshold"].tolist()
    assert found == pytest.approx([naive_quantile(values[step.labels == c], 0.7) for c in range(len(found))], rel=1e-5)
    assert len(set(found)) > 1, "or one threshold would do"
    labels, uncertainty = component._targets(step)
    mask = torch.zeros_like(labels, dtype=torch.bool)
    for c, threshold in enumerate(found):
        mask |= (labels == c) & (uncertainty <= threshold)
    assert 0 < mask.float().mean() < 1
    torch.testing.assert_close(ours, naive_loss(step.unlabelled.logits, labels, mask, with_dice), rtol=1e-4, atol=1e-6)


def test_a_class_without_labelled_pixels_keeps_its_threshold() -> None:
    component, site, _ = prepared("smoothing=0.5, quantiles=class")
    step = mixed_step(site)
    step.labels = torch.zeros_like(step.labels)
    component.loss(step)
    first = component.state["threshold"].tolist()
    assert first[0] > 0
    assert first[1:] == [0] * (len(first) - 1)


def test_the_teachers_disagree_and_both_count() -> None:
    component, site, _ = prepared("ema=0.3")
    step = mixed_step(site)
    component.after_step(step)
    labels, uncertainty = component._targets(step)
    with torch.no_grad():
        p_s, p_d = (one.eval()(step.weak).softmax(1) for one in (site.frozen(), component._dynamic))
    assert not torch.equal(p_s.argmax(1), p_d.argmax(1))
    assert torch.equal(labels, ((p_s + p_d) / 2).argmax(1))
    torch.testing.assert_close(uncertainty, (entropies(p_s) + entropies(p_d)) / 2)
    assert not any(p.requires_grad or p.grad is not None for p in component._dynamic.parameters())


def test_looking_leaves_no_trace_in_running_statistics() -> None:
    component, site, _ = prepared()
    step = mixed_step(site)
    networks = site.network, component._dynamic
    before = [{n: t.clone() for n, t in network.state_dict().items()} for network in networks]
    component.loss(step)
    for network, state in zip(networks, before, strict=True):
        assert_same(state, dict(network.state_dict()))


def test_the_dynamic_teacher_starts_again_at_the_received_model_in_every_round(tmp_path: Path) -> None:
    component, site, workspace = prepared()
    component.after_step(mixed_step(site, forward=False))
    again = component_of(workspace, "dual_teacher", component.state)
    again.receive(site, {})
    assert_same(dict(again._dynamic.state_dict()), dict(site.received))
    assert not any("/" in name or "weight" in name for name in component.state)  # and is not kept


# ---- the threshold ---------------------------------------------------------------------------------------------------


def test_threshold_and_ramp_step_by_step() -> None:
    component, site, _ = prepared("smoothing=0.9, delta_start=0.2, delta_end=0.6")
    expected = 0.0
    for number in range(5):
        shake(site.network, number)
        step = mixed_step(site, progress=number / 5)
        component.loss(step)
        level = 0.2 + 0.4 * number / 5
        expected = 0.9 * expected + 0.1 * naive_quantile(entropies(step.labelled.logits.detach().softmax(1)), level)
        assert float(component.state["threshold"]) == pytest.approx(expected, rel=1e-5)
        assert int(component.state["steps"]) == number + 1


class Watching:
    """Notes what the threshold is made of, in every step of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, int, int, int, float, list[float]]] = []
        move = DualTeacher._move_threshold

        def noted(component: DualTeacher, step: Step) -> None:
            values = entropies(step.labelled.logits.detach().softmax(1)).flatten().tolist()
            self.steps.append((step.site.site, step.round, step.epoch, step.index, step.progress, values))
            move(component, step)

        monkeypatch.setattr(DualTeacher, "_move_threshold", noted)


def test_threshold_and_ramp_over_the_rounds_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three rounds of two epochs; north has 2 steps an epoch, south 1, and west no labels."""
    watching = Watching(monkeypatch)
    recipe = tiny_recipe("fgasl", training={"validate_every": 3})
    server = mixed_server(tmp_path, recipe)
    server.fit()
    end = final_tensors(server)
    for site, steps in (("north", 2), ("south", 1), ("west", 1)):
        seen = [one for one in watching.steps if one[0] == site]
        assert [one[1:4] for one in seen] == [(r, e, i) for r in range(3) for e in range(2) for i in range(steps)]
        threshold = 0.0
        for number, (*_, progress, values) in enumerate(seen):
            assert progress == pytest.approx(number / len(seen))
            if values:
                level = 0.15 + 0.15 * number / len(seen)
                threshold = 0.9 * threshold + 0.1 * naive_quantile(torch.tensor(values), level)
        assert float(end[f"{site}/dual_teacher/threshold"]) == pytest.approx(threshold, rel=1e-4)
        assert int(end[f"{site}/dual_teacher/steps"]) == sum(bool(one[-1]) for one in seen)
    assert end["west/dual_teacher/threshold"] == 0
    assert not any(name.startswith("zone/dual_teacher") for name in end)


def test_debias_ends_the_warm_up() -> None:
    plain, site, _ = prepared("smoothing=0.9")
    debiased, _, _ = prepared("smoothing=0.9, debias=true")
    first = None
    for number in range(4):
        for component in (plain, debiased):
            step = mixed_step(site)
            component.loss(step)
        assert torch.equal(plain.state["threshold"], debiased.state["threshold"])
        assert float(debiased._threshold()) == pytest.approx(float(plain._threshold()) / (1 - 0.9 ** (number + 1)))
        first = float(debiased._threshold()) if first is None else first
    assert first == pytest.approx(naive_quantile(entropies(step.labelled.logits.detach().softmax(1)), 0.225), rel=1e-4)


def test_a_second_pass_over_a_step_moves_nothing_and_asks_no_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    component, site, _ = prepared()
    step = mixed_step(site)
    first = component.loss(step)
    state = {n: t.clone() for n, t in component.state.items()}
    step.output = site.network.features(step.inputs)
    monkeypatch.setattr(UNet, "forward", lambda *_: pytest.fail("a teacher was asked again"))
    torch.testing.assert_close(component.loss(step)["dual_teacher"], first["dual_teacher"])
    assert_same(state, component.state)


def test_half_precision_stays_outside_of_entropies() -> None:
    component, site, _ = prepared("smoothing=0")
    step = mixed_step(site)
    step.output.logits = (3 * step.output.logits).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        component._move_threshold(step)
    threshold = component.state["threshold"]
    assert threshold.dtype == torch.float32
    wanted = naive_quantile(entropies(step.labelled.logits.detach().float().softmax(1)), 0.225)
    assert float(threshold) == pytest.approx(wanted, rel=1e-5)
    step.once("dual_teacher/targets", lambda: component._targets(step))
    with torch.autocast("cpu", torch.bfloat16):
        assert component.loss(step)["dual_teacher"].dtype == torch.float32


def test_an_overflow_does_not_stay_in_the_threshold() -> None:
    component, site, _ = prepared("smoothing=0.5")
    component.loss(mixed_step(site))
    before = component.state["threshold"].clone()
    step = mixed_step(site)
    step.output.logits = step.output.logits.detach().clone()
    step.output.logits[0, 0, 0, 0] = math.inf
    component.loss(step)
    assert torch.equal(component.state["threshold"], before)
    component.loss(mixed_step(site))
    assert component.state["threshold"] > before


# ---- edge cases ------------------------------------------------------------------------------------------------------


def test_an_empty_mask_gives_a_term_of_zero_with_a_gradient_of_zero() -> None:
    component, site, _ = prepared("delta_start=0, delta_end=0")
    step = mixed_step(site)
    step.once("dual_teacher/threshold", lambda: None)  # it stays at 0
    term = component.loss(step)["dual_teacher"]
    assert term.item() == 0
    gradients = torch.autograd.grad(term, list(site.network.parameters()), allow_unused=True)
    assert all(g is None or torch.equal(g, torch.zeros_like(g)) for g in gradients)


def test_a_site_without_labels_keeps_its_threshold_and_has_a_term() -> None:
    state = {"threshold": torch.tensor(0.8), "steps": torch.tensor(7)}
    component, site, _ = prepared(counts=(0, 3), state=state)
    term = component.loss(mixed_step(site))["dual_teacher"]
    assert term.requires_grad
    assert term > 0
    assert_same(component.state, {"threshold": torch.tensor(0.8), "steps": torch.tensor(7)})


@pytest.mark.parametrize(("settings", "counts"), [("", (3, 0)), ("weight=0", (3, 2))])
def test_where_nothing_is_taught_there_are_no_teachers(
    settings: str, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SiteRound, "frozen", lambda *_: pytest.fail("a copy of the network was made"))
    component, site, _ = prepared(settings, counts)
    step = mixed_step(site)
    assert component.loss(step) == {}
    component.after_step(step)
    assert component.state == {}


def test_a_step_without_unlabelled_images_moves_the_threshold_and_has_no_term() -> None:
    component, site, _ = prepared()
    step = mixed_step(site, forward=False)
    step.weak = step.strong = step.unlabelled_indices = None
    step.output = site.network.features(step.inputs)
    assert component.loss(step) == {}
    assert component.state["threshold"] > 0


@pytest.mark.parametrize("sections", [{}, MOVING], ids=["fixed", "moving"])
@pytest.mark.parametrize("method", ["fgasl", "fgasl-perturbation_invariance"])
def test_every_kind_of_site_trains(sections: dict[str, Any], method: str, tmp_path: Path) -> None:
    """Fewer labels than a batch, no labels, no unlabelled images; all terms finite, nobody refused."""
    server = mixed_server(tmp_path, tiny_recipe(method, training=SHORT, **sections), observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert keeper.events[0]["samples"] == {name: sum(counts) for name, counts in MIXED.items()}
    for event in keeper.events:
        losses = event["losses"]
        assert all(math.isfinite(value) for terms in losses.values() for value in terms.values())
        assert {name for name, terms in losses.items() if "dual_teacher" in terms} == {"north", "south", "west"}
        assert {name for name, terms in losses.items() if "segmentation" in terms} == {"north", "south", "zone"}
    assert all(t.isfinite().all() for t in final_tensors(server).values() if t.is_floating_point())


def test_a_federation_of_one(tmp_path: Path) -> None:
    server = mixed_server(
        tmp_path, tiny_recipe("fgasl", training=SHORT), {"north": (2, 3)}, observer=(keeper := Keeper())
    )
    server.fit()
    assert not keeper.refusals
    assert final_tensors(server)["server/gaa/weight/north"] == 1


@pytest.mark.parametrize("sections", [{}, MOVING], ids=["fixed", "moving"])
def test_weight_zero_is_the_method_without_it(sections: dict[str, Any], tmp_path: Path) -> None:
    methods = "fgasl+dual_teacher(weight=0)", "fgasl-dual_teacher"
    servers = [mixed_server(tmp_path / m, tiny_recipe(m, training=SHORT, **sections)) for m in methods]
    for server in servers:
        server.fit()
    assert_same(*map(final_tensors, servers))


# ---- what survives ---------------------------------------------------------------------------------------------------


class Rebuilding(InProcess):
    """Builds everything anew from the disk for every site and round."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for name in sites:
            old = self.sites[name]
            fresh = Site(old.data, type(old.store)(old.store.folder))
            workspace = build_workspace(self.workspace.recipe, self.workspace.task)
            yield from InProcess(workspace, {name: fresh}).train(broadcast, [name])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A recipe with moving views, and what its uninterrupted run ends with; the common checks have fixed views."""
    recipe = tiny_recipe("fgasl", training=SHORT, **MOVING)
    server = mixed_server(tmp_path_factory.mktemp("whole"), recipe)
    server.fit()
    return recipe, final_tensors(server)


@pytest.mark.parametrize("moment", ["site", "round"])
def test_teacher_and_threshold_survive_a_kill(whole: Whole, moment: str, tmp_path: Path) -> None:
    recipe, end = whole
    assert end["north/dual_teacher/threshold"] > 0
    killer = Killer(lambda what, number, site: what == moment and number == 1 and site in ("", "north"))
    with pytest.raises(Interrupted):
        mixed_server(tmp_path, recipe, observer=killer).fit()
    resumed = mixed_server(tmp_path, recipe)
    assert resumed.state.round == 1
    resumed.fit()
    assert_same(end, final_tensors(resumed))


def test_a_site_rebuilt_every_round_ends_the_same(whole: Whole, tmp_path: Path) -> None:
    recipe, end = whole
    server = mixed_server(tmp_path, recipe, engine=Rebuilding)
    server.fit()
    assert_same(end, final_tensors(server))


def test_a_site_that_missed_a_round_goes_on_with_its_threshold(tmp_path: Path) -> None:
    recipe = tiny_recipe("fgasl", training={**SHORT, "participation": 0.5, "rounds": 4})
    server = mixed_server(tmp_path, recipe, {"north": (3, 4), "south": (2, 3)}, observer=(keeper := Keeper()))
    server.fit()
    rounds = {name: sum(name in event["samples"] for event in keeper.events) for name in ("north", "south")}
    assert all(0 < count < 4 for count in rounds.values())
    for name, steps in (("north", 2), ("south", 2)):
        assert int(final_tensors(server)[f"{name}/dual_teacher/steps"]) == steps * rounds[name]


# ---- passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sections", "fixed"),
    [
        ({}, True),
        ({"augmentation": {"gamma": 0.5}}, True),
        ({"augmentation": {"flip": 0.5}}, False),
        ({"augmentation": {"flip": 0.5}, "strong": {"geometry": False}}, True),
        ({"augmentation": {"elastic": 0.1}}, False),
        ({"data": {"patch": [8, 8]}}, False),
    ],
)
def test_views_are_fixed_where_nothing_moves_them(sections: dict[str, Any], fixed: bool) -> None:
    workspace = build_workspace(tiny_recipe("fgasl", **sections), tiny_task())
    assert [component.context.fixed_views for component in workspace.components] == [fixed] * 3


class Passes:
    """Images through the encoder and the decoder of each network of a round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, student: torch.nn.Module) -> None:
        self.encoded: dict[str, list[int]] = {}
        self.decoded: dict[str, list[int]] = {}
        dynamic: list[torch.nn.Module] = []
        frozen, receive, encode, decode = SiteRound.frozen, DualTeacher.receive, UNet.encode, UNet.decode

        def role(network: torch.nn.Module) -> str:
            if network is student:
                return "student" if network.training else "gap"
            assert not network.training
            assert not torch.is_grad_enabled()
            return "dynamic" if any(network is one for one in dynamic) else "static"

        def received(component: DualTeacher, site: SiteRound, shared: dict[str, Tensor]) -> None:
            receive(component, site, shared)
            assert component._dynamic is not None
            dynamic.append(component._dynamic)

        def encoded(network: UNet, images: Tensor) -> list[Tensor]:
            self.encoded.setdefault(role(network), []).append(len(images))
            return encode(network, images)

        def decoded(network: UNet, pyramid: Sequence[Tensor]) -> list[Tensor]:
            self.decoded.setdefault(role(network), []).append(len(pyramid[0]))
            return decode(network, pyramid)

        self.copies = 0

        def counted(site: SiteRound, *more: Any) -> Any:
            self.copies += 1
            return frozen(site, *more)

        monkeypatch.setattr(SiteRound, "frozen", counted)
        monkeypatch.setattr(DualTeacher, "receive", received)
        monkeypatch.setattr(UNet, "encode", encoded)
        monkeypatch.setattr(UNet, "decode", decoded)


@pytest.mark.parametrize("geometry", [True, False])
def test_the_passes_of_a_round(geometry: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """3 labelled and 4 unlabelled images in batches of 2 + 2 make 2 steps an epoch, 6 in three epochs."""
    recipe = tiny_recipe("fgasl", training={"local_epochs": 3}, strong={"geometry": geometry}, **MOVING)
    server = mixed_server(tmp_path, recipe, {"north": (3, 4)})
    passes = Passes(monkeypatch, server.workspace.network)
    site = server.engine.sites["north"]  # type: ignore[attr-defined]
    for number in range(2):
        passes.encoded.clear()
        passes.decoded.clear()
        passes.copies = 0
        site.train(server.workspace, Broadcast(number, server.state.weights))
        assert passes.encoded["student"] == [4] * 6
        assert passes.decoded["student"] == [4] * 12  # clean and perturbed
        assert passes.encoded["dynamic"] == [2] * 6
        assert passes.encoded["gap"] == [2, 2, 2, 1]
        if geometry:
            assert passes.encoded["static"] == [2] * 6 + [2, 2, 2, 1]
        else:
            assert sum(passes.encoded["static"]) == 7  # every image once, in training or for the gap
            assert max(passes.encoded["static"]) <= 2
        assert passes.decoded["static"] == passes.encoded["static"]
        assert passes.copies == 3  # dynamic, static, and static for the gap


def test_fixed_views_give_the_same_round_as_looking_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ends = []
    for room in (2**31, 0):
        monkeypatch.setattr("polyclinic.components.toolbox.unlabelled.teachers._MAX_BYTES_HELD", room)
        server = mixed_server(tmp_path / str(room), tiny_recipe("fgasl", training=SHORT))
        server.fit()
        ends.append(final_tensors(server))
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=1e-3, atol=1e-4)
