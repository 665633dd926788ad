"""MOON's model-contrastive term.

Paper: Li, He, Song, *Model-Contrastive Federated Learning*, CVPR 2021, algorithm 1, lines 14 to 18:
``l_con = -log( exp(cos(z, z_glob) / T) / (exp(cos(z, z_glob) / T) + sum_k exp(cos(z, z_prev_k) / T)) )`` and
``l = l_sup + mu l_con``. ``z`` is the representation under the weights in training, ``z_glob`` under the received ones,
``z_prev_k`` under those that the site itself ended its earlier rounds with. The batch's mean is taken.

Departures: The representation is the bottleneck's global average, since a segmentation network has no vector before
its classifier. The projection is off by default; where it is on, it stands beside the segmentation path and not in it,
so only this term trains it. In a site's first round the previous weights are the received ones: both cosines are equal,
the term is the constant ``mu log 2`` without a gradient, and no frozen pass is made. The released code has an empty
pool there and a term of 0, which trains the same.

Nothing leaves the site but the projection, as a weight like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import projection_head
from polyclinic.components.toolbox.frozen_encoders import FrozenEncoder, encoder_weights
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

_NAME = "model_contrast"


def contrast(trained: Tensor, frozen: Tensor, temperature: float) -> Tensor:
    """MOON's ``l_con``, the mean over the batch.

    ``trained`` is ``(batch, width)``; ``frozen`` is ``(1 + pool, batch, width)``, the global model's vectors first.
    """
    similarities = F.cosine_similarity(trained[None], frozen, dim=-1) / temperature
    return (similarities.logsumexp(0) - similarities[0]).mean()


def represent(network: SegmentationNetwork, bottleneck: Tensor) -> Tensor:
    """The vector ``(batch, width)`` of a bottleneck ``(batch, channel, *spatial)``, projected if there is a head."""
    with torch.autocast(bottleneck.device.type, enabled=False):
        vectors = bottleneck.float().flatten(2).mean(2)
        return cast(Tensor, network.extras[_NAME](vectors)) if _NAME in network.extras else vectors


@component
class ModelContrast(Component):
    """Pulls image representations towards the global model's and away from the site's previous model's."""

    name = _NAME
    level = "objective"
    paper = "Li, He, Song, CVPR 2021"
    equations = (
        "MOON algorithm 1, lines 14-18: -mu log( e^g / (e^g + sum_k e^(p_k)) ), "
        "g = cos(z, z_glob) / T, p_k = cos(z, z_prev_k) / T",
    )
    strength = "mu"

    class Settings(ComponentSettings):
        """``projection``: width of the head on the representation, 0 for none; ``pool``: previous models, FIFO."""

        mu: float = Field(1.0, ge=0)
        temperature: float = Field(0.5, gt=0)
        projection: int = Field(0, ge=0)
        pool: int = Field(1, ge=1)

    _encoder: FrozenEncoder | None = None
    _previous: tuple[Tensors, ...] = ()

    def install(self, network: SegmentationNetwork) -> None:
        """Put the projection into the network's extras, where it is averaged with everything else."""
        if self.settings.mu and self.settings.projection:
            network.extras[_NAME] = projection_head(network.widths["bottleneck"], self.settings.projection)

    def warnings(self) -> list[str]:
        """One round has no previous model."""
        if self.settings.mu and self.context.training.rounds == 1:
            return ["model_contrast does nothing in a site's first round, and training.rounds = 1 has no other."]
        return []

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Freeze the received model once; the previous ones borrow its modules and bring their own weights."""
        if not self.settings.mu or not self.state:
            return
        self._encoder = FrozenEncoder(site, represent)
        self._previous = tuple(
            {name: tensor.to(site.device) for name, tensor in weights.items()} for weights in self._pool()
        )

    def loss(self, step: Step) -> dict[str, Tensor]:
        """The weighted term over the labelled images; nothing when there are none."""
        mu = self.settings.mu
        if not mu or not len(step.images):
            return {}
        if self._encoder is None:
            return {_NAME: torch.tensor(mu * math.log(2), device=step.images.device)}
        trained = represent(step.network, step.labelled.encoder[-1])
        # Outside of the block below: the frozen passes run in the precision of the trained one.
        encoder = self._encoder
        frozen = step.once(f"{_NAME}/frozen", lambda: self._frozen(encoder, step.images))
        with torch.autocast(trained.device.type, enabled=False):
            return {_NAME: mu * contrast(trained, frozen, self.settings.temperature)}

    def share(self, site: SiteRound) -> Tensors:
        """Nothing leaves; the weights that were just trained become the newest of the pool."""
        if not self.settings.mu:
            return {}
        pool = [encoder_weights(site.network, _NAME), *self._pool()][: self.settings.pool]
        self.state = {f"{age}/{name}": tensor for age, weights in enumerate(pool) for name, tensor in weights.items()}
        return {}

    def _frozen(self, encoder: FrozenEncoder, images: Tensor) -> Tensor:
        """Vectors ``(1 + pool, batch, width)`` of the global and the previous models."""
        return torch.stack([encoder.run(images, weights) for weights in ({}, *self._previous)]).float()

    def _pool(self) -> list[Tensors]:
        """Previous weights by name, the newest first; in ``state`` they are called ``age/name``."""
        ages: dict[int, Tensors] = {}
        for key, tensor in self.state.items():
            age, _, name = key.partition("/")
            ages.setdefault(int(age), {})[name] = tensor
        return [ages[age] for age in sorted(ages)]
