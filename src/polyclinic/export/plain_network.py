"""A copy of a network that graphs can hold: on the CPU, in eval mode, its modules in plain operations.

A module that a graph cannot hold as it is says what stands in its place: ``for_export()`` gives a module with the same
output in eval mode. Components bring theirs (FSR, amplitude normalisation); batch norms without statistics are here.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class BatchStatistics(nn.Module):
    """A batch norm without weights and running statistics: those of the batch at hand, in eval mode too."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(batch, channel, *spatial)`` of the same shape."""
        axes = [0, *range(2, x.dim())]
        centred = x - x.mean(axes, keepdim=True)
        return centred / (centred.square().mean(axes, keepdim=True) + self.eps).sqrt()


def plain_network(network: nn.Module) -> nn.Module:
    """The copy; the network itself stays as it is."""
    result = copy.deepcopy(network).to("cpu", torch.float32).eval()
    for name, module in list(result.named_modules()):
        replacement = _replacement(module)
        if name and replacement is not module:
            parent, _, own = name.rpartition(".")
            setattr(result.get_submodule(parent), own, replacement.eval())
    return result.requires_grad_(False)


def _replacement(module: nn.Module) -> nn.Module:
    offer: Any = getattr(module, "for_export", None)
    if offer is not None:
        replacement: nn.Module = offer()
        return replacement
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None and not module.affine:
        return BatchStatistics(module.eps)
    return module
