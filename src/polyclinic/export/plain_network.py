"""A copy of a network that graphs can hold: on the CPU, in eval mode, its modules in plain operations.

A module that a graph cannot hold as it is says what stands in its place: ``for_export()`` gives a module with the same
output in eval mode. Components bring theirs (FSR, amplitude normalisation); batch norms without statistics are here.
"""

from __future__ import annotations

import copy

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


class _Doubled(nn.Module):
    """Only for a module whose place is at the top, so that it can be replaced like any other."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def plain_network(network: nn.Module) -> nn.Module:
    """The copy; the network itself stays as it is."""
    top = _Doubled(copy.deepcopy(network).to("cpu", torch.float32).eval())
    for name, module in list(top.named_modules()):
        replacement = _replacement(module)
        if replacement is not module:
            parent, _, own = name.rpartition(".")
            setattr(top.get_submodule(parent), own, replacement.eval())
    top.module.requires_grad_(False)
    return top.module


def _replacement(module: nn.Module) -> nn.Module:
    if hasattr(module, "for_export"):
        replacement: nn.Module = module.for_export()
        return replacement
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None and not module.affine:
        return BatchStatistics(module.eps)
    return module
