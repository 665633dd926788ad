from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mixed_sites import MIXED, component_of, mixed_server, mixed_site, mixed_step, shake, site_round
from polyclinic.components.images.randconv import _Convolution
from polyclinic.components.step import Step
from polyclinic.data.federation import Task
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks.unet import UNet
from support import (
    CLASSES,
    Interrupted,
    Keeper,
    Killer,
    assert_same,
    final_tensors,
    tiny_recipe,
    tiny_server,
    tiny_task,
)


def prepared(settings: str = "", counts: tuple[int, int] = (2, 3), dims: int = 2) -> tuple[Any, Step]:
    """A component, and a step before its forward pass."""
    workspace = build_workspace(tiny_recipe(f"fedavg+randconv({settings})"), tiny_task(dims))
    shake(workspace.network, 7)
    step = mixed_step(site_round(workspace, mixed_site("north", *counts, dims)), forward=False)
    return component_of(workspace, "randconv"), step


def drawing(channels: int, dims: int, settings: str = "") -> tuple[Any, Step]:
    """The same for any number of channels, without images."""
    task = Task(CLASSES, channels, dims)
    workspace = build_workspace(tiny_recipe(f"fedavg+randconv({settings})"), task)
    step = Step(
        None, workspace.network, *[torch.zeros(0)] * 2, torch.Generator().manual_seed(0), 0, 0, 0, True, 0.5, 0.1
    )  # type: ignore[arg-type]
    return component_of(workspace, "randconv"), step


def naive(images: Tensor, kernel: Tensor, share: float) -> Tensor:
    """Equation 1, offset by offset; outside of the image there are zeros."""
    channels, dims, size = images.shape[1], images.dim() - 2, kernel.shape[-1]
    padded = F.pad(images.double(), [size // 2] * 2 * dims)
    result = torch.zeros_like(images, dtype=torch.float64)
    for offset in itertools.product(range(size), repeat=dims):
        place = tuple(slice(o, o + s) for o, s in zip(offset, images.shape[2:], strict=True))
        for out, into in itertools.product(range(channels), repeat=2):
            result[:, out] += float(kernel[out, into][offset]) * padded[:, into][(slice(None), *place)]
    return share * result + (1 - share) * images


@pytest.mark.parametrize(("channels", "dims"), [(1, 2), (3, 2), (1, 3), (3, 3)])
def test_a_view_is_the_printed_mixture(channels: int, dims: int) -> None:
    component, step = drawing(channels, dims)
    images = torch.rand(2, channels, *[6] * dims, generator=torch.Generator().manual_seed(1))
    sizes = set()
    for _ in range(60):
        view = component._draw(step)
        if view.kernel.shape[-1] in sizes:
            continue
        sizes.add(view.kernel.shape[-1])
        assert view.kernel.shape == (channels, channels, *[view.kernel.shape[-1]] * dims)
        torch.testing.assert_close(view(images), naive(images, view.kernel, view.share).float(), rtol=1e-4, atol=1e-5)
    assert sizes == {1, 3, 5, 7}


@pytest.mark.parametrize(("channels", "dims"), [(1, 2), (3, 3)])
def test_kernels_and_shares_have_the_printed_distributions(channels: int, dims: int) -> None:
    """The variance keeps the scale of an image of independent pixels: 1 / (C k^dims)."""
    component, step = drawing(channels, dims)
    draws = [component._draw(step) for _ in range(400)]
    shares = torch.tensor([d.share for d in draws])
    assert 0.45 < float(shares.mean()) < 0.55
    assert 0 <= float(shares.min()) < 0.05 < 0.95 < float(shares.max()) < 1
    for size in (1, 3, 5, 7):
        kernels = [d.kernel for d in draws if d.kernel.shape[-1] == size]
        assert 70 < len(kernels) < 130
        values = torch.cat([k.flatten() for k in kernels])
        deviations = (values.std() * math.sqrt(channels * size**dims)).item()
        assert abs(deviations - 1) < 4 / math.sqrt(2 * len(values))
        assert abs(float(values.mean()) * math.sqrt(channels * size**dims)) < 4 / math.sqrt(len(values))


def test_the_image_variant_leaves_half_of_the_batches_and_never_mixes() -> None:
    component, step = drawing(3, 2, "variant=image")
    images = torch.rand(1, 3, 8, 8)
    draws = [component._draw(step) for _ in range(200)]
    assert {d.share for d in draws} == {0.0, 1.0}
    assert 80 < sum(d.share for d in draws) < 120
    for view in draws[:20]:
        plain = F.conv2d(images, view.kernel, padding=view.kernel.shape[-1] // 2)
        assert torch.equal(view(images), plain if view.share else images)


@pytest.mark.parametrize(("settings", "draws"), [("", 3), ("views=5", 5), ("views=1", 1), ("weight=0", 1)])
@pytest.mark.parametrize("dims", [2, 3])
def test_views_are_independent_draws_from_the_clean_images(settings: str, draws: int, dims: int) -> None:
    component, step = prepared(settings, dims=dims)
    clean, weak, strong = step.images, step.weak, step.strong
    assert weak is not None
    assert strong is not None
    kept = [t.clone() for t in (clean, weak, strong)]
    twin, again = prepared(settings, dims=dims)
    wanted = [twin._draw(again) for _ in range(draws)]
    component.on_images(step)
    assert torch.equal(step.images, wanted[0](kept[0]))
    assert torch.equal(step.strong, wanted[0](kept[2]))  # type: ignore[arg-type]
    assert not torch.equal(step.strong, strong)  # type: ignore[arg-type]
    assert step.weak is weak
    assert torch.equal(weak, kept[1])
    assert torch.equal(clean, kept[0]), "the site's images are not written into"
    assert len(component._views) == draws - 1
    for view, convolution in zip(component._views, wanted[1:], strict=True):
        assert torch.equal(view, convolution(kept[0]))
    assert torch.equal(step.generator.get_state(), again.generator.get_state())


@pytest.mark.parametrize("views", [2, 3])
def test_value_and_gradient_of_the_consistency(views: int) -> None:
    component, step = prepared(f"weight=0.7, views={views}", (2, 1))
    component.on_images(step)
    step.output = step.network.features(step.inputs)
    before = {n: t.clone() for n, t in step.network.state_dict().items()}
    ours = component.loss(step)["randconv"]
    assert_same(before, step.network.state_dict())
    logits = [step.output.logits[:2], *step.network(torch.cat(component._views)).split(2)]
    rows = [one.softmax(1).movedim(1, -1).flatten(0, -2) for one in logits]
    total = rows[0].new_zeros(())
    for pixel in zip(*rows, strict=True):
        middle = sum(pixel) / views
        for p in pixel:
            total = total + (p * (p / middle).log()).sum() / views
    wanted = 0.7 * total / len(rows[0])
    assert wanted > 1e-4
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-7)
    parameters = list(step.network.parameters())
    for a, b in zip(*(torch.autograd.grad(t, parameters, retain_graph=True) for t in (ours, wanted)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_equal_views_agree_and_sure_ones_that_differ_stay_finite() -> None:
    component, step = prepared("views=2", (1, 0))
    component._views = [step.images]
    step.network.eval()  # batch norms see the same then
    step.output = step.network.features(step.images)
    assert float(component.loss(step)["randconv"].detach()) == pytest.approx(0, abs=1e-6)
    sure = torch.tensor([500.0, -500.0, -500.0]).reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
    step.output.logits = sure.clone().requires_grad_()
    step.network.forward = lambda images: sure.flip(1)  # type: ignore[method-assign]
    term = component.loss(step)["randconv"]
    assert float(term.detach()) == pytest.approx(math.log(2))
    term.backward()
    assert step.output.logits.grad.isfinite().all()  # type: ignore[union-attr]


@pytest.mark.parametrize(("settings", "counts"), [("views=1", (2, 3)), ("weight=0", (2, 3)), ("", (0, 3))])
def test_no_extra_pass_without_consistency_or_labelled_images(
    settings: str, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    component, step = prepared(settings, counts)
    strong = step.strong
    component.on_images(step)
    assert not torch.equal(step.strong, strong)  # type: ignore[arg-type]
    step.output = step.network.features(step.inputs)
    monkeypatch.setattr(UNet, "encode", None)
    assert component.loss(step) == {}


def test_nothing_happens_to_no_images() -> None:
    assert len(_Convolution(torch.ones(2, 2, 1, 1), 0.5)(torch.zeros(0, 2, 4, 4))) == 0


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_the_extra_pass_holds_all_further_views(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[int] = []
    encode = UNet.encode

    def counting(network: UNet, images: Tensor) -> list[Tensor]:
        sizes.append(len(images))
        return encode(network, images)

    recipe = tiny_recipe("fedavg+randconv", training={"local_epochs": 1, "rounds": 1})
    server = tiny_server(tmp_path, recipe, dims=3, sizes={"north": 4})
    monkeypatch.setattr(UNet, "encode", counting)
    server.round()
    assert sizes[:4] == [2, 4, 2, 4]


def test_on_top_of_a_method_that_learns_from_unlabelled_images(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        "fixmatch(threshold=0.4)+randconv(variant=image)", training={"rounds": 2, "local_epochs": 1},
        augmentation={"flip": 0.5},
    )  # fmt: skip
    keeper = Keeper()
    whole = mixed_server(tmp_path / "whole", recipe, observer=keeper)
    whole.fit()
    assert not keeper.refusals
    terms = {site: set(losses) for site, losses in keeper.events[0]["losses"].items()}
    own = {"segmentation", "randconv"}
    assert terms == {"north": {*own, "fixmatch"}, "south": {*own, "fixmatch"}, "west": {"fixmatch"}, "zone": own}
    assert terms.keys() == MIXED.keys()
    killer = Killer(lambda what, number, site: (what, number, site) == ("site", 1, "south"))
    with pytest.raises(Interrupted):
        mixed_server(tmp_path / "killed", recipe, observer=killer).fit()
    resumed = mixed_server(tmp_path / "killed", recipe)
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))
