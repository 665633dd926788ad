"""The last layers: a classifier that may start from a prior, and auxiliary ones for deep supervision.

The prior is that of Lin et al., *Focal Loss for Dense Object Detection*, ICCV 2017, section 4.1: with it the first
predictions of a rare class are as rare as the class. It is a number of the recipe and not the shares that a site's
labels have: server and sites must build the same network from the recipe alone, a server has no images, and shares that
a site measured would leave it undeclared, inside of the first weights.

Deep supervision is that of nnU-Net (Isensee et al., Nature Methods 2021): a 1x1 convolution on every map of the decoder
but the coarsest, and weights that halve from map to map. The finest map's is the classifier itself.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import counted
from polyclinic.networks.base import SegmentationNetwork
from polyclinic.networks.blocks import CONVOLUTIONS

Prior = float | tuple[float, ...] | None
_HEADS = "deep_supervision"
HEADS = f"extras.{_HEADS}"
"""Where the auxiliary classifiers are in a network; each has the name of its tap."""


def classifier_layer(dims: int, channels: int, classes: int, prior: Prior = None) -> nn.Module:
    """A 1x1 convolution to one logit a class; where its weights say nothing, the softmax is the ``prior``."""
    layer = CONVOLUTIONS[dims](channels, classes, kernel_size=1)
    if prior is not None and layer.bias is not None:
        with torch.no_grad():
            layer.bias.copy_(prior_logits(classes, prior))
    return layer


def prior_logits(classes: int, prior: float | tuple[float, ...]) -> torch.Tensor:
    """Logits ``(classes,)`` whose softmax is the prior of the foreground classes and the rest for the background.

    >>> [round(share, 6) for share in prior_logits(3, (0.1, 0.2)).softmax(0).tolist()]
    [0.7, 0.1, 0.2]
    """
    shares = prior if isinstance(prior, tuple) else (prior,) * (classes - 1)
    if len(shares) != classes - 1:
        raise PolyclinicError(
            f"network.prior_bias has {counted(len(shares), 'share')}, and the task has {classes - 1} foreground "
            f"class{'es' if classes > 2 else ''}; give one for each, or one number for all."
        )
    if sum(shares) >= 1:
        raise PolyclinicError(
            f"network.prior_bias: the foreground classes have {sum(shares):g} of all pixels together, which leaves "
            "nothing for the background; give smaller shares."
        )
    return torch.tensor([math.log(1 - sum(shares)), *map(math.log, shares)])


def add_auxiliary_heads(network: SegmentationNetwork, prior: Prior = None) -> None:
    """Put a classifier for each decoder map between the finest and the coarsest into ``network.extras``."""
    levels = [name for name in reversed(network.widths) if name.startswith("decoder")]  # decoder0 first
    if len(levels) < 3:
        raise PolyclinicError(
            f"network.deep_supervision needs three levels of the decoder or more, and this network has {len(levels)}; "
            "set network.depth = 3 or more (vit: network.patch = 8 or more), or leave it out."
        )
    network.extras[_HEADS] = nn.ModuleDict(
        {
            name: classifier_layer(network.spatial_dims, network.widths[name], network.classes, prior)
            for name in levels[1:-1]
        }
    )


def auxiliary_heads(network: SegmentationNetwork) -> dict[str, nn.Module]:
    """The auxiliary classifiers by tap, from fine to coarse, ``decoder1`` first; none without deep supervision."""
    return dict(network.extras[_HEADS].named_children()) if _HEADS in network.extras else {}
