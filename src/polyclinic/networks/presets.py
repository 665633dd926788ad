"""Encoders of pathology foundation models, whose weights a user has to ask their authors for.

Papers: Lu et al., *A visual-language foundation model for computational pathology*, Nature Medicine 2024 (CONCH), and
Wang et al., *A pathology foundation model for cancer diagnosis and prognosis prediction*, Nature 2024 (CHIEF).
Architectures, sizes and colour statistics are those of the released code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Preset:
    """An architecture of timm and its ``options``, and how the user's copy of its weights looks and is obtained.

    ``prefix`` stands before the encoder's names in the published file; ``mean`` and ``std`` are of colours in [0, 1].
    """

    architecture: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    obtain: str
    prefix: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


class ConvStem(nn.Module):
    """CHIEF's way from images ``(batch, 3, h, w)`` to Swin's tokens ``(batch, h / 4, w / 4, channel)``.

    Two strided convolutions and a 1x1 one, where the published Swin has a single 4x4 convolution. Takes the arguments
    of timm's patch embedding, most of which have no meaning here.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 4,
        in_chans: int = 3,
        embed_dim: int = 96,
        norm_layer: Callable[..., nn.Module] = nn.LayerNorm,
        **_: Any,
    ) -> None:
        super().__init__()
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        self.grid_size = (height // patch_size, width // patch_size)
        first, second = embed_dim // 8, embed_dim // 4
        self.proj = nn.Sequential(
            *self._halving(in_chans, first), *self._halving(first, second), nn.Conv2d(second, embed_dim, 1)
        )
        self.norm = norm_layer(embed_dim)

    @staticmethod
    def _halving(channels: int, width: int) -> tuple[nn.Module, ...]:
        return nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        """Tokens with the channel last."""
        tokens: Tensor = self.norm(self.proj(images).permute(0, 2, 3, 1))
        return tokens


IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

PRESETS = {
    "conch": Preset(
        "vit_base_patch16_224",
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
        "ask for access at huggingface.co/MahmoodLab/CONCH, download pytorch_model.bin",
        prefix="visual.trunk.",
        options={"img_size": 448},
    ),
    "chief": Preset(
        "swin_tiny_patch4_window7_224",
        *IMAGENET,
        "ask for the weights at github.com/hms-dbmi/CHIEF, download CHIEF_CTransPath.pth",
        options={"embed_layer": ConvStem},
    ),
}
