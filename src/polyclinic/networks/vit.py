"""A vision transformer with a convolutional decoder, trained from scratch: PathFL's second backbone.

Papers: Zhang et al., *PathFL*, Medical Image Analysis 2025, section 4.3.8 (six heads, depth eight, MLP 1536), and
Dosovitskiy et al., *An Image is Worth 16x16 Words*, ICLR 2021. The decoder is that of ``decoder.py``.

Departures: PathFL gives no width of the tokens; 384 is a quarter of the MLP, 64 for each head, and leads to 14.57
million weights in the transformer of 15.12 million in its Table 10. There is no class token, which nothing here would
read. Positions are learned for a grid of 14 (2D) or 6 (3D) patches along each axis, as for images of 224 or volumes of
96, and interpolated for other sizes. Level ``k`` of ``n`` reads the tokens after ``k / n`` of the layers, as in UNETR.
The attention is PyTorch's.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, log2

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyclinic.networks.blocks import CONVOLUTIONS, MLP, linear_mode
from polyclinic.networks.decoder import Level, PyramidNetwork
from polyclinic.networks.registry import network
from polyclinic.recipe import ViTSettings


@network("vit", ViTSettings)
class ViT(PyramidNetwork):
    """Tokens of ``patch`` pixels along each axis; ``log2(patch)`` levels below the image's own."""

    def __init__(self, channels: int, classes: int, spatial_dims: int, settings: ViTSettings) -> None:
        depth, size = int(log2(settings.patch)), settings.embedding
        levels = [Level(size, 2**level, depth - level) for level in range(1, depth + 1)]
        super().__init__(channels, classes, spatial_dims, settings, levels, settings.multiple)
        self.ends = layer_ends(settings.layers, depth)
        self.embedding = PatchEmbedding(channels, size, settings.patch, spatial_dims)
        self.blocks = nn.ModuleList(
            TransformerBlock(size, settings.heads, settings.mlp, settings.dropout) for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(size)

    def maps(self, images: Tensor) -> list[Tensor]:
        """Token maps ``(batch, embedding, *grid)`` of the levels; the deepest is normalised, the others as they are."""
        grid = [size // patch for size, patch in zip(images.shape[2:], self.multiples, strict=True)]
        tokens, levels = self.embedding(images), []
        for start, end in pairwise([0, *self.ends]):
            for block in self.blocks[start:end]:
                tokens = block(tokens)
            levels.append(tokens)
        levels[-1] = self.norm(tokens)
        return [one.transpose(1, 2).unflatten(2, grid) for one in levels]

    def encoder_stages(self) -> list[str]:
        """The patch embedding and each layer, ``block0`` first."""
        return ["embedding", *(f"block{number}" for number in range(len(self.blocks)))]

    def encoder_stage(self, parts: list[str]) -> str:
        """The last norm belongs to the bottleneck, whose neck alone reads it."""
        if parts[0] == "blocks":
            return f"block{parts[1]}"
        return "bottleneck" if parts[0] == "norm" else parts[0]

    def outlets(self) -> dict[str, nn.Module]:
        """The modules of the tokens, and the taps."""
        blocks = {f"block{number}": block for number, block in enumerate(self.blocks)}
        return super().outlets() | {"embedding": self.embedding} | blocks


def layer_ends(layers: int, levels: int) -> list[int]:
    """After how many layers each level's map is taken, evenly spread, the last after all."""
    return [ceil(layers * level / levels) for level in range(1, levels + 1)]


class PatchEmbedding(nn.Module):
    """Images ``(batch, channel, *spatial)`` to tokens ``(batch, patches, embedding)`` with learned positions."""

    def __init__(self, channels: int, size: int, patch: int, dims: int) -> None:
        super().__init__()
        self.projection = CONVOLUTIONS[dims](channels, size, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(1, size, *[14 if dims == 2 else 6] * dims))
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Tokens in the order of the image's axes."""
        patches: Tensor = self.projection(images)
        positions: Tensor = self.positions
        grid = patches.shape[2:]
        if positions.shape[2:] != grid:
            positions = F.interpolate(positions, grid, mode=linear_mode(len(grid)), align_corners=False)
        return (patches + positions).flatten(2).transpose(1, 2)


class TransformerBlock(nn.Module):
    """Attention and MLP on tokens ``(batch, token, embedding)``, each behind a norm and added to its input."""

    def __init__(self, size: int, heads: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = MLP(size, mlp, dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """The same shape."""
        tokens = tokens + F.dropout(self._attend(self.norm1(tokens)), self.dropout, self.training)
        result: Tensor = tokens + self.mlp(self.norm2(tokens))
        return result

    def _attend(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        attended: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return attended
