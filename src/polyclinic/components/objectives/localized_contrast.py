"""The localized contrastive penalty of CLSL, FSF3A's client localized structural loss.

Paper: FSF3A, eqs. 9-11. ``pres``, ``prev`` and ``serv`` are the bottleneck maps of the network in training, of the
site's own network before, and of the received one; ``P(d, i, j)`` is the tile of ``patch x patch`` cells at row i and
column j of slice d, with all channels, as one vector:

(9)  ``sim_pos = exp(P_prev . P_pres / tau)``
(10) ``sim_neg = exp(P_prev . P_serv / tau)``
(11) ``L_LCP = -mean over tiles and slices of log( sim_pos / (sim_pos + sim_neg) )``
(1)  ``L_CLSL = L_spatial + gamma L_LCP``          ``L_spatial``: ``volume_dice`` and ``gradient_alignment``

(11) is computed as ``softplus((neg - pos) / tau)``, which is the same and never overflows, in float32 under mixed
precision too. Sums over tiles take the place of vectors that are cut out.

``pairing``, because the paper contradicts itself: ``temporal`` is (9) and (10). There both parts of the negative pair
are frozen, so that nothing is pushed away from the global model: it only scales the pull towards the previous one.
``global`` is what abstract and introduction say, as MOON: ``pres . serv`` positive, ``pres . prev`` negative.
``temporal_anchor_pres`` is (9) with ``pres . serv`` as its negative.

Departures: Similarities are cosines; the paper's inner products (``similarity = "dot"``) grow with the features, and
``scaled_dot`` divides them by the root of their length. ``gamma`` and ``patch`` are not in the paper. ``prev`` is "the
previous epoch's": the encoder at the end of the local epoch before, in a round's first epoch that of the site's last
round, and in a site's first epoch of all the received one (also after ``policies.skipped_rounds = "reset"``); there
``global`` and ``temporal_anchor_pres`` are the constant ``gamma log 2``. Slices are those along the last axis; in 2D
there is one. Where ``patch`` does not divide the map, tiles at the edge are smaller, and none is left out. A tile of
zeros has cosine 0 with all others, without a gradient. Frozen encoders are in evaluation mode.

Nothing leaves the site. It keeps one snapshot of its encoder's weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import inverse_length
from polyclinic.components.toolbox.frozen_encoders import FrozenEncoder, encoder_weights
from polyclinic.exchange.messages import Tensors

Pairing = Literal["temporal", "global", "temporal_anchor_pres"]
Similarity = Literal["cosine", "scaled_dot", "dot"]


def tile_sums(values: Tensor, patch: int) -> Tensor:
    """Sums of ``(batch, row, column)`` or ``(batch, row, column, slice)`` over tiles of rows and columns."""
    missing = [-size % patch for size in values.shape[1:3]]
    if any(missing):  # zeros add nothing, so that tiles at the edge are those of the cells that are there
        values = F.pad(values, [0, 0] * (values.dim() - 3) + [0, missing[1], 0, missing[0]])
    batch, rows, columns, *slices = values.shape
    return values.reshape(batch, rows // patch, patch, columns // patch, patch, *slices).sum((2, 4))


def patch_similarities(first: Tensor, second: Tensor, patch: int, kind: Similarity) -> Tensor:
    """Of the tiles of two maps ``(batch, channel, row, column[, slice])``: ``(batch, tiles, tiles[, slice])``."""
    dots = tile_sums((first * second).sum(1), patch)
    if kind == "dot":
        return dots
    if kind == "scaled_dot":
        return dots / math.sqrt(first.shape[1] * patch**2)
    lengths = [inverse_length(tile_sums(maps.square().sum(1), patch)) for maps in (first, second)]
    return dots * lengths[0] * lengths[1]


def localized_contrast(
    pres: Tensor,
    prev: Tensor,
    serv: Tensor,
    patch: int = 2,
    temperature: float = 0.5,
    pairing: Pairing = "temporal",
    similarity: Similarity = "cosine",
) -> Tensor:
    """Equation 11 of three maps ``(batch, channel, row, column[, slice])``, the mean over the batch, too."""
    positive, negative = {
        "temporal": ((prev, pres), (prev, serv)),
        "global": ((pres, serv), (pres, prev)),
        "temporal_anchor_pres": ((pres, prev), (pres, serv)),
    }[pairing]
    gap = patch_similarities(*negative, patch, similarity) - patch_similarities(*positive, patch, similarity)
    return F.softplus(gap / temperature).mean()


@component
class LocalizedContrast(Component):
    """Compares patches of the bottleneck with those of the site's previous encoder and of the received one."""

    name = "localized_contrast"
    level = "objective"
    paper = "FSF3A"
    equations = (
        "FSF3A eq. 11: -gamma mean log( e^(pos / tau) / (e^(pos / tau) + e^(neg / tau)) )",
        "FSF3A eqs. 9-10, pairing = temporal: pos = prev . pres, neg = prev . serv",
        "FSF3A's introduction, pairing = global: pos = pres . serv, neg = pres . prev",
        "pairing = temporal_anchor_pres: pos = pres . prev, neg = pres . serv",
    )
    strength = "gamma"

    class Settings(ComponentSettings):
        """``temperature`` is the paper's; it names neither ``gamma`` nor ``patch``."""

        gamma: float = Field(0.5, ge=0, description="weight of the penalty")
        temperature: float = Field(0.5, gt=0, description="tau")
        patch: int = Field(2, ge=1, description="rows and columns of a tile, in cells of the bottleneck")
        pairing: Pairing = Field("temporal", description="which pairs are positive and negative")
        similarity: Similarity = Field("cosine", description="of two tiles")

    _encoder: FrozenEncoder | None = None
    _previous: Tensors | None = None
    """Of the local epoch before; none where the received encoder stands for it."""

    def used_equations(self) -> tuple[str, ...]:
        """Those of the chosen pairing."""
        return tuple(e for e in self.equations if "pairing" not in e or f"= {self.settings.pairing}:" in e)

    def warnings(self) -> list[str]:
        """Settings under which there never is a previous model."""
        training, chosen = self.context.training, self.settings
        if chosen.gamma and chosen.pairing != "temporal" and training.rounds == training.local_epochs == 1:
            return [
                f"localized_contrast(pairing={chosen.pairing}) does nothing in a site's first epoch, and there is no "
                "other with training.rounds = 1 and training.local_epochs = 1."
            ]
        return []

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Freeze the received encoder; the site's own of the round before comes from its memory."""
        if self.settings.gamma:
            self._encoder = FrozenEncoder(site)
            self._previous = {name: tensor.to(site.device) for name, tensor in self.state.items()} or None

    def loss(self, step: Step) -> dict[str, Tensor]:
        """Equation 11 over the labelled images; nothing when there are none."""
        chosen, encoder = self.settings, self._encoder
        if not chosen.gamma or encoder is None or not len(step.images):
            return {}
        if self._previous is None and chosen.pairing != "temporal":  # both similarities are equal: no pass is needed
            return {self.name: torch.tensor(chosen.gamma * math.log(2), device=step.images.device)}
        pres = step.labelled.encoder[-1]
        # Outside of the block below: the frozen passes run in the precision of the trained one.
        prev, serv = step.once(f"{self.name}/frozen", lambda: self._frozen(encoder, step.images))
        with torch.autocast(pres.device.type, enabled=False):
            maps = pres.float(), prev.float(), serv.float()
            term = localized_contrast(*maps, chosen.patch, chosen.temperature, chosen.pairing, chosen.similarity)
            return {self.name: chosen.gamma * term}

    def _frozen(self, encoder: FrozenEncoder, images: Tensor) -> tuple[Tensor, Tensor]:
        """The maps ``prev`` and ``serv``; one pass gives both where there is no previous model."""
        serv = encoder.run(images)
        return serv if self._previous is None else encoder.run(images, self._previous), serv

    def after_epoch(self, step: Step) -> None:
        """The encoder as it is now is the previous one of the next epoch, in this round or the next."""
        if self.settings.gamma:
            self.state = self._previous = encoder_weights(step.network)
