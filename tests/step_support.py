"""A step at a site outside of any run: for components whose hooks are called one by one."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyclinic.components.base import Component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.federation.workspace import Workspace
from polyclinic.networks.unet import UNet
from support import tiny_site

CPU = torch.device("cpu")
# A site of which a component asks nothing but the policy: there is none.
BARE: Any = SimpleNamespace(minimum_images=1, require_cases=lambda *_: None)


def component_of(workspace: Workspace, name: str, state: Mapping[str, torch.Tensor] | None = None) -> Component:
    """A site's copy of one component of the method."""
    return next(c for c in workspace.fresh_components({name: dict(state or {})}) if c.name == name)


def site_of(workspace: Workspace, dims: int = 2, size: int = 8) -> SiteRound:
    """A site of three training images that has just received the network's weights."""
    received = {n: t.detach().clone() for n, t in workspace.network.state_dict().items()}
    data = tiny_site("north", 3, dims, size)
    return SiteRound("north", 1, workspace.network, received, data, CPU, torch.Generator(), 3)


def step_of(site: SiteRound, rows: int = 3, round_number: int = 1) -> Step:
    """A step over the site's first images, whose pass in train mode has happened."""
    images, labels = site.data.images.batch(torch.arange(rows))
    generator = torch.Generator().manual_seed(0)
    step = Step(site, site.network, images, labels, generator, round_number, 0, 0, True, 0.5, 0.1)
    site.network.train()
    step.output = site.network.features(step.inputs)
    return step


@torch.no_grad()
def shake(network: torch.nn.Module, seed: int) -> None:
    """Move all weights a little."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in network.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.4 * (torch.rand(tensor.shape, generator=generator) - 0.5))


def count_encodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[UNet, bool]]:
    """Every encoder pass from now on: its network, and whether it has gradients."""
    calls: list[tuple[UNet, bool]] = []
    encode = UNet.encode

    def counting(network: UNet, images: torch.Tensor) -> list[torch.Tensor]:
        calls.append((network, torch.is_grad_enabled()))
        return encode(network, images)

    monkeypatch.setattr(UNet, "encode", counting)
    return calls


def count_decodes(monkeypatch: pytest.MonkeyPatch) -> list[UNet]:
    """Every decoder pass from now on."""
    calls: list[UNet] = []
    decode = UNet.decode

    def counting(network: UNet, pyramid: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(network)
        return decode(network, pyramid)

    monkeypatch.setattr(UNet, "decode", counting)
    return calls


def same_gradients(ours: torch.Tensor, wanted: torch.Tensor, *inputs: torch.Tensor) -> None:
    """Equal values, and equal gradients of all inputs, one of them not zero."""
    torch.testing.assert_close(ours, wanted)
    gradients = [torch.autograd.grad(value, inputs, retain_graph=True) for value in (ours, wanted)]
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other)


def naive_cosine(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The cosine of two vectors, number by number."""
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    return dot / (sum(a * a for a in first) * sum(b * b for b in second)).sqrt()
