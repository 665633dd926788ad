"""Blocks have the names, first values, outputs and gradients of the MONAI blocks that older runs were made of."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import pytest
import torch
from monai.networks.blocks import Convolution as MonaiConvolution
from monai.networks.blocks import MLPBlock
from monai.networks.blocks import UpSample as MonaiUpSample
from monai.networks.nets.basic_unet import Down as MonaiDown
from monai.networks.nets.basic_unet import TwoConv, UpCat
from torch import Tensor, nn

from polyclinic.networks.blocks import MLP, BlockStyle, Convolution, Down, TwoConvolutions, Up, UpSample, norm_layer

ACTIVATIONS = {
    "relu": ("relu", {"inplace": True}),
    "leaky-relu": ("leakyrelu", {"inplace": True, "negative_slope": 0.01}),
}
STYLES = [
    (dims, norm, bias, dropout, "relu" if bias else "leaky-relu")
    for dims in (2, 3)
    for norm in ("instance", "batch", "group", "batch-nostats")
    for bias, dropout in ((True, 0.0), (False, 0.3))
]


def monai_norm(name: str, channels: int) -> tuple[str, dict[str, Any]]:
    if name == "group":
        return "group", {"num_groups": max(1, channels // gcd(channels, 4))}
    if name == "batch-nostats":
        return "batch", {"affine": False, "track_running_stats": False}
    return name, {"affine": True}


def answers(make: Callable[[], nn.Module], inputs: list[Tensor]) -> dict[str, Tensor]:
    """First values, outputs and gradients of a module, and what it leaves of the random numbers."""
    torch.manual_seed(5)
    module = make()
    found = {f"first {name}": value.clone() for name, value in module.state_dict().items()}
    found["random"] = torch.rand(3)
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    torch.manual_seed(6)  # of the dropout
    trained = module(*inputs)
    (trained * torch.linspace(-1, 2, trained.numel()).view(trained.shape)).sum().backward()
    found |= {"trained": trained.detach(), "random after": torch.rand(3)}
    found |= {f"slope {name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    found |= {f"slope of input {i}": t.grad for i, t in enumerate(inputs) if t.grad is not None}
    found |= {f"then {name}": value for name, value in module.state_dict().items()}
    found["tested"] = module.eval()(*inputs).detach()
    return found


def assert_same(mine: Callable[[], nn.Module], monais: Callable[[], nn.Module], *inputs: Tensor) -> None:
    one, other = answers(mine, list(inputs)), answers(monais, list(inputs))
    assert list(one) == list(other)
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


@pytest.mark.parametrize(("dims", "norm", "bias", "dropout", "activation"), STYLES)
def test_convolutions_and_poolings(dims: int, norm: str, bias: bool, dropout: float, activation: str) -> None:
    style, images = BlockStyle(dims, norm, bias, dropout, activation), torch.rand(2, 3, *[9, 8, 6][:dims])
    options: dict[str, Any] = {"act": ACTIVATIONS[activation], "norm": monai_norm(norm, 6)}
    options |= {"bias": bias, "dropout": dropout}
    assert_same(lambda: TwoConvolutions(style, 3, 6), lambda: TwoConv(dims, 3, 6, **options), images)
    assert_same(lambda: Down(style, 3, 6), lambda: MonaiDown(dims, 3, 6, **options), images)
    for kernel in (1, 3):
        assert_same(
            lambda kernel=kernel: Convolution(style, 3, 6, kernel),
            lambda kernel=kernel: MonaiConvolution(dims, 3, 6, kernel_size=kernel, **options),
            images,
        )


@pytest.mark.parametrize(("dims", "norm", "bias", "dropout", "activation"), STYLES)
@pytest.mark.parametrize("upsample", ["deconv", "linear"])
@pytest.mark.parametrize("odd", [False, True])
def test_upsampling_beside_a_skip(
    dims: int, norm: str, bias: bool, dropout: float, activation: str, upsample: Any, odd: bool
) -> None:
    """A pooling has left out the last row of an odd size: the raised map is padded there."""
    style = BlockStyle(dims, norm, bias, dropout, activation)
    options: dict[str, Any] = {"act": ACTIVATIONS[activation], "norm": monai_norm(norm, 4)}
    options |= {"bias": bias, "dropout": dropout}
    linear = {"upsample": "nontrainable", "pre_conv": None, "halves": False}
    options |= {"upsample": "deconv"} if upsample == "deconv" else linear
    coarse, skip = torch.rand(2, 8, *[4, 3, 2][:dims]), torch.rand(2, 4, *[8 + odd, 6, 4 + odd][:dims])
    assert_same(lambda: Up(style, 8, 4, 4, upsample), lambda: UpCat(dims, 8, 4, 4, **options), coarse, skip)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("scale", [1, 2, 3, 4])
def test_upsampling_alone(dims: int, scale: int) -> None:
    maps = torch.rand(2, 4, *[4, 3, 2][:dims])
    assert_same(
        lambda: UpSample(dims, 4, 6, scale, "deconv"), lambda: MonaiUpSample(dims, 4, 6, scale, mode="deconv"), maps
    )
    for align in (False, True):
        assert_same(
            lambda align=align: UpSample(dims, 4, 4, scale, "linear", align),
            lambda align=align: MonaiUpSample(
                dims, scale_factor=scale, mode="nontrainable", pre_conv=None, align_corners=align
            ),
            maps,
        )


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_mlp(dropout: float) -> None:
    assert_same(lambda: MLP(6, 10, dropout), lambda: MLPBlock(6, 10, dropout), torch.rand(2, 5, 6))


def test_sizes_of_each_axis_and_another_activation() -> None:
    """A volume with thick slices: nothing happens along its last axis."""
    style = BlockStyle(3, activation="leaky-relu")
    images = torch.rand(1, 2, 8, 8, 3)
    down = Down(style, 2, 4, kernel=(3, 3, 1), stride=(2, 2, 1))
    coarse = down(images)
    assert coarse.shape == (1, 4, 4, 4, 3)
    assert coarse.min() < 0
    changed = images.clone()
    changed[..., 2] += 1
    convolution = Convolution(style, 2, 4, (3, 3, 1))
    assert torch.equal(convolution.conv(images)[..., :2], convolution.conv(changed)[..., :2])
    for upsample in ("deconv", "linear"):
        up = Up(style, 4, 2, 2, upsample, kernel=(3, 3, 1), stride=(2, 2, 1))  # type: ignore[arg-type]
        assert up(coarse, images).shape == images.shape


def test_groups_have_four_channels_where_that_divides() -> None:
    assert [norm_layer("group", channels, 2).num_groups for channels in (4, 8, 6, 3)] == [1, 2, 3, 3]
