from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mixed_sites import MIXED, component_of, mixed_server, mixed_site, mixed_step, shake, site_round
from polyclinic.components.step import Step
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from support import Interrupted, Keeper, Keeping, Killer, assert_same, final_tensors, tiny_recipe, tiny_task


def prepared(expression: str, counts: tuple[int, int] = (2, 3), dims: int = 2) -> tuple[Any, Step]:
    """A component, and a step with its forward pass done."""
    workspace = build_workspace(tiny_recipe(expression), tiny_task(dims))
    shake(workspace.network, 7)
    site = site_round(workspace, mixed_site("north", *counts, dims))
    return component_of(workspace, "fixmatch"), mixed_step(site)


def pixels(step: Step) -> tuple[Tensor, Tensor]:
    """Probabilities ``(unlabelled, pixel, class)``: of the weak view from a copied network, and of the strong view."""
    twin = copy.deepcopy(step.network).train()
    with torch.no_grad():
        weak = twin(step.weak).softmax(1)
    strong = step.output.logits[len(step.images) :].softmax(1)
    return weak.flatten(2).movedim(1, 2), strong.flatten(2).movedim(1, 2)


def naive(step: Step, threshold: float, dice: bool) -> tuple[Tensor, float]:
    """Equation 4 pixel by pixel, and the share of confident pixels."""
    weak, strong = pixels(step)
    images, size, classes = strong.shape
    confident = [[float(q.max()) >= threshold for q in image] for image in weak]
    labels = [[int(q.argmax()) for q in image] for image in weak]
    total = strong.new_zeros(())
    for i in range(images):
        for x in range(size):
            if confident[i][x]:
                total = total - strong[i, x, labels[i][x]].log()
    loss = total / (images * size)
    if dice:
        for i in range(images):
            kept = [x for x in range(size) if confident[i][x]]
            for c in range(classes):
                own = sum((strong[i, x, c] for x in kept), strong.new_zeros(()))
                both = sum((strong[i, x, c] for x in kept if labels[i][x] == c), strong.new_zeros(()))
                truth = sum(labels[i][x] == c for x in kept)
                loss = loss + (1 - (2 * both + 1e-5) / (own + truth + 1e-5)) / (images * classes)
    return loss, sum(map(sum, confident)) / (images * size)


def gradients(loss: Tensor, step: Step) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(step.network.parameters()), retain_graph=True, allow_unused=True)
    return [g for g in found if g is not None]


@pytest.mark.parametrize(("dims", "dice", "confident"), [(2, False, 0.6), (2, True, 0.3), (3, True, 0.6), (2, True, 1)])
def test_value_and_gradient_are_those_of_the_printed_term(dims: int, dice: bool, confident: float) -> None:
    component, step = prepared("fixmatch", (2, 3) if dims == 2 else (1, 1), dims)
    threshold = float(pixels(step)[0].amax(2).quantile(1 - confident)) if confident < 1 else 0.0
    changes = {"weight": 0.7, "threshold": threshold, "dice": dice}
    component.settings = component.settings.model_copy(update=changes)
    wanted, share = naive(step, threshold, dice)
    assert share == pytest.approx(confident, abs=0.1)
    term = component.loss(step)["fixmatch"]
    torch.testing.assert_close(term, 0.7 * wanted, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(gradients(term, step), gradients(0.7 * wanted, step), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_without_a_confident_pixel_loss_and_gradient_are_zero() -> None:
    component, step = prepared("fixmatch(threshold=1, dice=true)")
    assert pixels(step)[0].max() < 1
    term = component.loss(step)["fixmatch"]
    assert float(term.detach()) == 0
    assert gradients(term, step)
    assert not any(g.any() for g in gradients(term, step))


def test_the_threshold_itself_is_confident() -> None:
    component, step = prepared("fixmatch")
    weak = pixels(step)[0]
    exact = float(weak.max(2).values.median())
    component.settings = component.settings.model_copy(update={"threshold": exact})
    assert torch.equal(component._pseudo_labels(step.network, step.weak)[1].flatten(1), weak.max(2).values >= exact)


def test_without_unlabelled_images_there_is_no_term() -> None:
    component, step = prepared("fixmatch", (3, 0))
    assert component.loss(step) == {}


def test_one_extra_pass_without_a_trace_and_none_for_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    component, step = prepared("fixmatch(threshold=0.5)")
    before = {n: t.clone() for n, t in step.network.state_dict().items()}
    seen: list[Tensor] = []
    encode = UNet.encode

    def counting(network: UNet, images: Tensor) -> list[Tensor]:
        assert network.training
        assert not torch.is_grad_enabled()
        seen.append(images)
        return encode(network, images)

    monkeypatch.setattr(UNet, "encode", counting)
    first, again = (component.loss(step)["fixmatch"] for _ in range(2))
    assert torch.equal(first, again)
    assert len(seen) == 1
    assert seen[0] is step.weak
    assert_same(before, step.network.state_dict())


def test_half_precision_stays_outside_of_the_loss() -> None:
    """The passes are left out: not every CPU convolves in bfloat16."""
    component, step = prepared("fixmatch(threshold=0.5, dice=true)")
    step.once("fixmatch/targets", lambda: component._pseudo_labels(step.network, step.weak))
    step.output.logits = step.output.logits.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        term = component.loss(step)["fixmatch"]
    assert term.dtype == torch.float32
    step.output.logits = step.output.logits.float()
    assert torch.equal(term, component.loss(step)["fixmatch"])


# ---- runs ------------------------------------------------------------------------------------------------------------

RECIPE = {"training": {"rounds": 2, "local_epochs": 1}, "augmentation": {"flip": 0.5}}


def test_sites_without_labels_or_without_unlabelled_images_take_part(tmp_path: Path) -> None:
    keeper = Keeper()
    server = mixed_server(tmp_path, tiny_recipe("fixmatch(threshold=0.4)", **RECIPE), observer=keeper, engine=Keeping)
    server.fit()
    assert not keeper.refusals
    terms = {site: set(losses) for site, losses in keeper.events[0]["losses"].items()}
    both = {"segmentation", "fixmatch"}
    assert terms == {"north": both, "south": both, "west": {"fixmatch"}, "zone": {"segmentation"}}
    updates = server.engine.updates  # type: ignore[attr-defined]
    assert {u.site: u.samples for u in updates} == {site: sum(counts) for site, counts in MIXED.items()}
    assert not any(u.shared for u in updates)


def test_a_killed_run_resumes_to_the_same_result(tmp_path: Path) -> None:
    recipe = tiny_recipe("fixmatch(threshold=0.4)", **RECIPE)
    whole = mixed_server(tmp_path / "whole", recipe)
    whole.fit()
    killer = Killer(lambda what, number, site: (what, number, site) == ("site", 1, "south"))
    with pytest.raises(Interrupted):
        mixed_server(tmp_path / "killed", recipe, observer=killer).fit()
    resumed = mixed_server(tmp_path / "killed", recipe)
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))


def test_weight_zero_is_fedavg_bit_for_bit_and_draws_no_unlabelled_image(tmp_path: Path) -> None:
    counts = {site: count for site, count in MIXED.items() if count[0]}
    servers = []
    for method in ("fedavg", "fixmatch(weight=0)", "fixmatch(threshold=0.4)"):
        server = mixed_server(tmp_path / method, tiny_recipe(method, **RECIPE), counts, engine=Keeping)
        server.fit()
        servers.append(server)
    plain, zero, whole = (final_tensors(server) for server in servers)
    assert_same(plain, zero)
    assert any(not torch.equal(plain[n], whole[n]) for n in plain)
    samples, steps = ({u.site: getattr(u, key) for u in servers[1].engine.updates} for key in ("samples", "steps"))  # type: ignore[attr-defined]
    assert samples == {"north": 3, "south": 1, "zone": 3}
    assert steps == {"north": 2, "south": 1, "zone": 2}
