"""A pretrained encoder that stays as it is, with a decoder that is trained.

PathFL section 4.3.8: CONCH and CHIEF "as frozen feature extractors coupled with an upsampling convolutional decoder".
The decoder is that of ``decoder.py``; the encoder is any model of timm that gives intermediate features.

The encoder's weights come from a file at every site. They are neither trained nor sent nor aggregated nor stored (the
paper's Table 10 has 3.5 GB for a round with CONCH), run without gradients and always in eval mode.

Departures: of a transformer whose maps all have one size, four depths are used and brought to four sizes (patch 16), as
in UNETR. Images must have intensities in [0, 1]; the colour statistics of the pretraining are applied here. Images
without three channels: one is shown as grey, others take turns as red, green and blue.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

import torch
from torch import Tensor, nn

from polyclinic.core.errors import PolyclinicError
from polyclinic.networks.decoder import Level, PyramidNetwork
from polyclinic.networks.encoders import Encoder, load_encoder
from polyclinic.networks.registry import network
from polyclinic.networks.vit import layer_ends
from polyclinic.recipe import PretrainedSettings


@network("pretrained", PretrainedSettings)
class Pretrained(PyramidNetwork):
    """``settings.model`` with the weights of ``settings.weights``, and a decoder of ``settings.width``; 2D only."""

    def __init__(self, channels: int, classes: int, spatial_dims: int, settings: PretrainedSettings) -> None:
        if spatial_dims != 2:
            raise PolyclinicError(
                "network.name = 'pretrained' is for 2D tasks, and this one is 3D; "
                "use unet or vit, or set spatial_dims = 2 to cut the volumes into slices."
            )
        encoder = load_encoder(settings)
        indices, levels = choose_levels(encoder.model.feature_info)
        multiple = int(max(level.stride for level in levels))
        # Inner layers of a transformer leave their tokens to its last norm.
        frozen = FrozenEncoder(encoder, channels, indices, norm=any(level.doublings for level in levels))
        _rehearse(frozen, channels, levels, multiple, settings)
        super().__init__(channels, classes, spatial_dims, settings, levels, multiple)
        self.encoder = frozen

    def maps(self, images: Tensor) -> list[Tensor]:
        """The frozen encoder's maps, without a gradient."""
        found: list[Tensor] = self.encoder(images)
        return found

    def encoder_stage(self, parts: list[str]) -> str:  # noqa: ARG002
        """The deepest level needs the whole encoder."""
        return "bottleneck"

    def frozen(self) -> set[str]:
        """All weights and buffers of the encoder."""
        return {f"encoder.{name}" for name in self.encoder.state_dict()}

    def norm_names(self) -> set[str]:
        """Without the encoder's: no site can have norm layers of its own there, and none may leave."""
        return super().norm_names() - self.frozen()


class FrozenEncoder(nn.Module):
    """Images ``(batch, channel, h, w)`` in [0, 1] to the model's maps at ``indices``. Never trained, never copied."""

    mean: Tensor
    std: Tensor
    colours: Tensor

    def __init__(self, encoder: Encoder, channels: int, indices: Sequence[int], norm: bool) -> None:
        super().__init__()
        self.model = encoder.model
        self.indices, self.norm = list(indices), norm
        self.register_buffer("mean", torch.tensor(encoder.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(encoder.std).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("colours", colours(channels), persistent=False)
        self.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> FrozenEncoder:  # noqa: ARG002
        """Eval mode always: neither running statistics nor dropout may move."""
        super().train(False)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenEncoder:
        """A copy of the network, such as a teacher, can share what never changes."""
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> list[Tensor]:
        """Maps ``(batch, channel, h / stride, w / stride)``, one for each level."""
        rgb = torch.einsum("oc,bc...->bo...", self.colours, images)
        wanted = sorted(set(self.indices))
        maps = self.model.forward_intermediates(
            (rgb - self.mean) / self.std, indices=wanted, norm=self.norm, stop_early=True, intermediates_only=True
        )
        return [maps[wanted.index(index)] for index in self.indices]


def colours(channels: int) -> Tensor:
    """How channels make red, green and blue: ``(3, channels)``, rows sum to 1.

    Three are taken as they are, one is repeated, others take turns; a colour without a channel is the mean of all.
    """
    weights = torch.zeros(3, channels)
    for channel in range(channels):
        weights[channel % 3, channel] = 1
    weights[weights.sum(1) == 0] = 1
    return weights / weights.sum(1, keepdim=True)


def choose_levels(maps: Any) -> tuple[list[int], list[Level]]:
    """Which of a timm model's maps make the levels, from fine to coarse, and what they are like.

    A model with maps of several sizes gives the last map of each; one with a single size gives evenly spread depths.
    """
    strides = [one["reduction"] for one in maps]
    if len(set(strides)) == 1:
        depth = max(1, round(log2(strides[0])))
        indices = [end - 1 for end in layer_ends(len(strides), depth)]
        doublings = [depth - level for level in range(1, depth + 1)]
    else:
        indices = sorted({stride: number for number, stride in enumerate(strides) if stride > 1}.values())
        doublings = [0] * len(indices)
    found = zip(indices, doublings, strict=True)
    return indices, [Level(maps[i]["num_chs"], strides[i] / 2**count, count) for i, count in found]


def _rehearse(
    encoder: FrozenEncoder, channels: int, levels: Sequence[Level], multiple: int, settings: PretrainedSettings
) -> None:
    """Models that only know their own image size, or give other maps than they say, are found before any training."""
    size = 2 * multiple
    expected = [(1, level.channels, *[round(size / level.stride / 2**level.doublings)] * 2) for level in levels]
    try:
        maps = [tuple(found.shape) for found in encoder(torch.zeros(1, channels, size, size))]
        problem = "" if maps == expected else f"its maps have shapes {maps} instead of {expected}"
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
    if problem:
        raise PolyclinicError(
            f"network.model = '{settings.model}' cannot be used as an encoder for images of any size ({problem}); "
            "choose another model, such as resnet18 or vit_small_patch16_224."
        )
