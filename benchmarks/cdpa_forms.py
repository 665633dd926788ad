"""The prototype losses of FedBCS with every pixel's embedding formed, beside polyclinic's factorised form.

`dense_loss` is what eqs. 9-16 say and what the released code does: every level is upsampled, concatenated with its
context, convolved to 256 channels, resized and concatenated to one embedding of 768 channels a pixel. Imported by
`fedbcs_cost.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.toolbox.prototypes.bank import (
    Prototypes,
    cosines,
    info_nce,
    mean_distances,
    mean_over_classes,
)
from polyclinic.components.toolbox.prototypes.pyramid import ContextRule, Fusion, PyramidView

TAU = 0.4
WIDTH, LEVELS, CHANNELS = 32, 4, 256


def resized(maps: Tensor, size: torch.Size | tuple[int, ...]) -> Tensor:
    return maps if maps.shape[2:] == torch.Size(size) else F.interpolate(maps, size=tuple(size), mode="nearest")


def dense_embedding(levels: list[Tensor], fusion: Fusion, grid: tuple[int, ...]) -> Tensor:
    """``(batch, 768, *grid)``."""
    slots = []
    for k, (linear, deeper) in enumerate(zip(fusion, fusion.contexts, strict=True)):
        stacked = torch.cat([levels[k], resized(levels[deeper], levels[k].shape[2:])], dim=1)
        weight = linear.weight[..., None, None]  # type: ignore[union-attr]
        slots.append(resized(F.conv2d(stacked, weight, linear.bias), grid))  # type: ignore[arg-type]
    return torch.cat(slots, dim=1)


def dense_loss(levels: list[Tensor], fusion: Fusion, labels: Tensor, prototypes: Prototypes, stride: int) -> Tensor:
    """Contrast and consistency of one stream over foreground pixels, and (without gradient) the class means."""
    grid = tuple(s // stride for s in labels.shape[1:])
    embedding = dense_embedding(levels, fusion, grid)
    rows = embedding.movedim(1, -1).reshape(-1, embedding.shape[1])
    flat = resized(labels[:, None].float(), grid).long().flatten()
    with torch.no_grad():
        for c in range(prototypes.count):
            rows[flat == c].mean(0)
    foreground = flat > 0
    anchors, owners = rows[foreground], flat[foreground]
    similarities = F.normalize(anchors, dim=1) @ F.normalize(prototypes.vectors, dim=1).T
    pulls = info_nce(similarities, owners, prototypes, TAU)
    distances = (anchors - prototypes.means[owners]).square().mean(1)
    return mean_over_classes(pulls + distances, owners, torch.ones_like(owners, dtype=torch.bool), prototypes.count)


def factorised_loss(
    levels: list[Tensor], fusion: Fusion, labels: Tensor, prototypes: Prototypes, stride: int
) -> Tensor:
    """The same number by `polyclinic.components.toolbox.prototypes.pyramid`."""
    view = PyramidView(levels, fusion, labels, stride)
    with torch.no_grad():
        view.class_sums(prototypes.count)
    dots, squares = view.compare(prototypes.vectors)
    pulls = info_nce(cosines(dots, squares, prototypes), view.labels, prototypes, TAU)
    distances = mean_distances(dots, squares, view.labels, prototypes) / view.channels
    return mean_over_classes(pulls + distances, view.labels, view.labels > 0, prototypes.count)


FORMS: dict[str, Callable[..., Tensor]] = {"dense": dense_loss, "factorised": factorised_loss}


def problem(batch: int, size: int, context: ContextRule) -> tuple[list[list[Tensor]], list[Fusion], Tensor, Prototypes]:
    """Features of both streams as a U-Net of width 32 gives them, a fifth of the pixels foreground."""
    torch.manual_seed(0)
    widths = [WIDTH * 2**k for k in range(LEVELS)]
    streams = [
        [torch.rand(batch, c, size // 2**k, size // 2**k).requires_grad_() for k, c in enumerate(widths)]
        for _ in range(2)
    ]
    fusions = [Fusion(widths, CHANNELS, context) for _ in range(2)]
    labels = (torch.rand(batch, size, size) < 0.2).long()
    vectors = torch.randn(4, CHANNELS * (LEVELS - 1))
    return streams, fusions, labels, Prototypes(vectors, torch.tensor([0, 0, 1, 1]), 2)


def forward_backward(
    form: str, data: tuple[list[list[Tensor]], list[Fusion], Tensor, Prototypes], strides: tuple[int, int]
) -> float:
    """The loss of both streams and all gradients; the value, so that the two forms can be compared."""
    streams, fusions, labels, prototypes = data
    for levels in streams:
        for level in levels:
            level.grad = None
    pairs = zip(streams, fusions, strides, strict=True)
    losses = [FORMS[form](levels, fusion, labels, prototypes, stride) for levels, fusion, stride in pairs]
    total = torch.stack(losses).mean()
    total.backward()
    return float(total.detach())
