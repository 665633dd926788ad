"""What every network offers: ``encode``, ``decode``, ``head``, and named taps for feature components."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.seeds import seed_torch


@dataclass
class Features:
    """One forward pass. ``encoder`` runs from fine to coarse, the bottleneck last, ``decoder`` from coarse to fine.

    Every map is ``(batch, channel, *spatial)``; ``logits`` is ``(batch, classes, *spatial)``.
    """

    encoder: list[Tensor]
    decoder: list[Tensor]
    logits: Tensor

    def rows(self, part: slice) -> Features:
        """The same pass for a part of the batch, without a copy."""
        return Features([f[part] for f in self.encoder], [f[part] for f in self.decoder], self.logits[part])


class SegmentationNetwork(nn.Module, ABC):
    """A pyramid encoder and decoder with taps.

    A tap is a place in the forward pass with a name (``input``, ``encoder0``, ..., ``bottleneck``, ``decoder2``, ...,
    ``decoder0``). Feature components put modules there; their weights are then part of the ``state_dict``, so that they
    are aggregated, checkpointed and exported like any other. ``extras`` holds the modules of components that act
    outside the forward pass, such as projection heads.
    """

    def __init__(
        self, channels: int, classes: int, spatial_dims: int, widths: dict[str, int], multiple: int | Sequence[int]
    ) -> None:
        """``multiple`` is how many times smaller the deepest map is than the image, along all axes or along each."""
        super().__init__()
        self.channels = channels
        self.classes = classes
        self.spatial_dims = spatial_dims
        self.widths = widths
        self.multiples = (multiple,) * spatial_dims if isinstance(multiple, int) else tuple(multiple)
        self.taps = nn.ModuleDict({name: nn.Sequential() for name in widths})
        self.extras = nn.ModuleDict()

    def insert(self, tap: str, name: str, module: nn.Module) -> None:
        """Put ``module`` at a tap, after what is already there."""
        if tap not in self.taps:
            raise ValueError(
                f"no tap '{tap}' in this network{suggestion(tap, self.taps) or '.'} Taps: {', '.join(self.taps)}"
            )
        self.taps[tap].add_module(name, module)

    @abstractmethod
    def encode(self, images: Tensor) -> list[Tensor]:
        """Encoder features from fine to coarse, the bottleneck last, for images ``(batch, channel, *spatial)``."""

    @abstractmethod
    def decode(self, pyramid: Sequence[Tensor]) -> list[Tensor]:
        """Decoder features from coarse to fine for what ``encode`` gave."""

    @abstractmethod
    def head(self, decoder: Tensor) -> Tensor:
        """Logits ``(batch, classes, *spatial)`` for the finest decoder map."""

    def features(self, images: Tensor) -> Features:
        """Run once and keep everything that a component may ask for."""
        encoder = self.encode(images)
        decoder = self.decode(encoder)
        return Features(encoder, decoder, self.head(decoder[-1]))

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``(batch, classes, *spatial)`` for images ``(batch, channel, *spatial)``."""
        logits: Tensor = self.head(self.decode(self.encode(images))[-1])
        return logits

    @abstractmethod
    def stages(self) -> dict[str, list[str]]:
        """The names of the ``state_dict`` by stage, in forward order; every name is in exactly one stage."""

    def outlets(self) -> dict[str, nn.Module]:
        """The module whose output is a stage's, by stage; that of the head are the logits."""
        return {stage: self.taps[stage] for stage in self.stages() if stage in self.taps}

    def frozen(self) -> set[str]:
        """Names of weights that come from a file, are never trained, and therefore never sent."""
        return set()

    def buffer_names(self) -> set[str]:
        """Names in the ``state_dict`` that are buffers, not parameters."""
        return set(self.state_dict()) - {name for name, _ in self.named_parameters(remove_duplicate=False)}

    def norm_names(self) -> set[str]:
        """Names of all weights and buffers of normalisation layers, found by type and not by spelling."""
        norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
        names: set[str] = set()
        for prefix, module in self.named_modules():
            if isinstance(module, norms):
                names |= {f"{prefix}.{name}" for name in module.state_dict()}
        return names


@contextmanager
def without_statistics(network: nn.Module) -> Iterator[None]:
    """Run extra passes in train mode without a trace in the running statistics of batch norms (PIA, perturbation)."""
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def parameter_count(network: nn.Module) -> int:
    """Number of trainable numbers."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


@torch.no_grad()
def load_weights(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy named tensors into the network's own storage; unknown names and other shapes are errors, missing ones stay.

    A shape that only broadcasts would give many weights one value, and noise for one where many leave.
    """
    own = network.state_dict()
    for name, tensor in weights.items():
        if own[name].shape != tensor.shape:
            raise PolyclinicError(
                f"'{name}' came with shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}: these weights are "
                "those of another model."
            )
        own[name].copy_(tensor)


@torch.no_grad()
def fresh_values(network: nn.Module, names: Collection[str], seed: int) -> None:
    """Give named weights the values of a new layer, drawn from the seed; a weight that no layer resets becomes 0."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        for prefix, module in network.named_modules():
            layer_weights = {name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == prefix}
            for name in layer_weights:
                getattr(module, name).zero_()
            if layer_weights and hasattr(module, "reset_parameters"):
                module.reset_parameters()
