"""Differential privacy of a site: its update is clipped and noise is added before it leaves.

See ``docs/explanation/privacy.md``.

Dwork et al. 2006; McMahan et al., *Learning differentially private recurrent language models*, ICLR 2018, but with the
noise drawn at the site, so that the server need not be trusted. With ``w`` the received parameters and ``w_m`` those
that site m would send, over all parameters that travel together, ``C`` = ``clip`` and ``z`` = ``noise``:

(1) ``d_m  = w_m - w``
(2) ``w_m' = w + d_m min(1, C / |d_m|) + N(0, z^2 C^2)``
(3) epsilon after k releases: that of one Gaussian mechanism with multiplier ``z / sqrt(k)``

The noise comes from a secret of the site, mixed with the round and the clipped update: a round that is repeated with
the same update sends the same bytes, so nothing can be averaged, and one that came out differently (on a GPU, for one)
gets other noise, so that nothing cancels. The latter counts as a release of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite, sqrt
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from polyclinic.components.base import BuiltMethod, Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.toolbox.privacy.accounting import epsilon_after, noise_for
from polyclinic.components.toolbox.privacy.coverage import Coverage, coverage_of
from polyclinic.components.toolbox.privacy.releases import add_release
from polyclinic.components.toolbox.privacy.report import summary_of
from polyclinic.components.toolbox.privacy.secret_normals import fingerprint, new_secret, normal
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.networks.base import SegmentationNetwork

_LOUD = 10  # noise so many times as long as the longest update deserves a sentence


@component
class Privacy(Component):
    """Differential privacy of a site: clips its update, adds noise that only the site can draw, counts epsilon."""

    name = "privacy"
    level = "update"
    paper = "McMahan et al., ICLR 2018; Balle and Wang, ICML 2018"
    equations = (
        "McMahan 2018: w_m' = w + (w_m - w) min(1, C / |w_m - w|) + N(0, z^2 C^2), at the site",
        "Balle and Wang 2018: epsilon(delta) of k releases = that of the Gaussian mechanism with z / sqrt(k)",
    )
    acts_last = True
    _coverage: Coverage
    _received: Mapping[str, Tensor]

    class Settings(ComponentSettings):
        """Noise as large as the clipped update may be."""

        clip: float = Field(1.0, gt=0, description="C: the largest L2 norm of an update, over all parameters together")
        noise: float | None = Field(1.0, ge=0, description="z: deviation of the noise over clip")
        target_epsilon: float | None = Field(
            None, gt=0, description="instead of noise: the epsilon after training.rounds releases"
        )
        delta: float = Field(1e-5, gt=0, lt=1, description="the delta that epsilon is stated at")
        uncovered: Literal["refuse", "allow"] = Field(
            "refuse", description="buffers and tensors of components that leave without noise"
        )
        seeded: bool = Field(
            False, description="noise from the recipe's seed, which the server knows: for experiments alone"
        )

        @model_validator(mode="before")
        @classmethod
        def _one_of_two(cls, given: Any) -> Any:
            if isinstance(given, dict) and given.get("target_epsilon") is not None:
                if given.get("noise") is not None:
                    raise ValueError("noise and target_epsilon are both given; the second computes the first, drop one")
                return {**given, "noise": None}
            if isinstance(given, dict) and "noise" in given and given["noise"] is None:
                raise ValueError("give noise or target_epsilon")
            return given

    @property
    def noise(self) -> float:
        """The noise multiplier, given or computed from the epsilon to keep."""
        if self.settings.noise is not None:
            return float(self.settings.noise)
        return noise_for(self.settings.target_epsilon, self.settings.delta, self.context.training.rounds)

    @property
    def depends_on_rounds(self) -> bool:
        """An epsilon for the whole run sets the noise of each round."""
        return self.settings.target_epsilon is not None

    # ---- build time ----------------------------------------------------------------------------------------------

    def check(self, built: BuiltMethod) -> None:
        """Refuse what would leave without noise, unless the user allows it, and components that would come later."""
        self._coverage = coverage_of(self, built)
        if self.settings.uncovered == "refuse":
            self._coverage.require_all()

    def warnings(self) -> list[str]:
        """Whatever makes epsilon mean less than it seems to, and noise that drowns the update."""
        sentences = []
        if not self.noise:
            sentences.append("privacy: noise = 0 clips updates and adds nothing to them, which is no privacy.")
        if self.settings.seeded:
            sentences.append(
                "privacy: seeded = true draws the noise from the recipe's seed, so that the server can draw it too and "
                "take it away; epsilon holds only against those who do not know the seed."
            )
        if self._coverage.uncovered:
            sentences.append(f"privacy: epsilon does not cover {'; '.join(self._coverage.uncovered)}.")
        if not self._coverage.numbers:
            sentences.append("privacy: this method exchanges no weights, so there is nothing to add noise to.")
        length = self.noise * sqrt(self._coverage.numbers)
        if length > _LOUD:
            sentences.append(
                f"privacy: the noise on {self._coverage.numbers} numbers is about {length:.0f} times as long as the "
                "longest update; only the mean over many sites and rounds makes it smaller "
                "(docs/explanation/privacy.md)."
            )
        if self.settings.delta > 1e-3:
            sentences.append(
                f"privacy: delta = {self.settings.delta:g} lets the promise fail that often; 1e-5 or less is usual."
            )
        return sentences

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """One number, because what a site released may have been refused or late, and counts nevertheless."""
        return (Shared("releases", (1,), "updates with noise released so far", torch.int64, below=2**31),)

    # ---- site half -----------------------------------------------------------------------------------------------

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Keep hold of what the update is compared with."""
        self._received = site.received

    def on_update(self, update: Update) -> Update:
        """Equations 1 and 2, in double precision; what travels is rounded to each tensor's own type."""
        before = {n: self._received[n].cpu().double() for n in self._coverage.names}
        for name, old in before.items():
            # Of shapes that only broadcast the noise would be one number for many weights, or many for one.
            own = update.weights[name].shape
            if old.shape != own:
                raise PolyclinicError(
                    f"privacy: '{name}' came with shape {tuple(old.shape)}, expected {tuple(own)}; nothing leaves."
                )
        change = clipped({n: update.weights[n].double() - old for n, old in before.items()}, self.settings.clip)
        key = self._register(update, change)
        deviation, weights = self.noise * self.settings.clip, dict(update.weights)
        for name, old in before.items():
            noisy = old + change[name] + deviation * normal(key, name, tuple(change[name].shape))
            weights[name] = noisy.to(update.weights[name].dtype)
        releases = torch.tensor([len(self.ledger["releases"])])
        return replace(update, weights=weights, shared=update.shared | {self.name: {"releases": releases}})

    def _register(self, update: Update, change: Tensors) -> bytes:
        """Enter the release into the ledger, unless it is one that left before, and give the key of its noise."""
        purpose = f"{update.site}\x1f{update.round}\x1f{self.settings.clip}\x1f{self.noise}"
        secret = self._secret()
        mark = fingerprint(secret, purpose, change)
        add_release(self.ledger, mark, 0.0 if self.settings.seeded else self.noise)
        return fingerprint(secret, purpose, {}) if self.settings.seeded else mark

    def _secret(self) -> bytes:
        """The site's own, made once and never sent; the server knows the recipe's seed and whatever follows from it."""
        if self.settings.seeded:
            return f"{self.context.seed}".encode()
        if "secret" not in self.ledger:
            self.ledger["secret"] = new_secret()
        return bytes(self.ledger["secret"].tolist())

    # ---- server half ---------------------------------------------------------------------------------------------

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Put what each site has spent so far into the record."""
        releases = {site: int(tensors["releases"]) for site, tensors in shared.items()}
        spent = {site: epsilon_after(count, self.noise, self.settings.delta) for site, count in releases.items()}
        notes = {"releases": {site: float(count) for site, count in releases.items()}}
        if all(map(isfinite, spent.values())):
            notes["epsilon"] = spent
        server.notes[self.name] = notes
        return {}

    def summary(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """What each site has spent in the whole run."""
        return summary_of(self.settings, self.noise, self._coverage, events)


def clipped(change: Tensors, clip: float) -> Tensors:
    """The tensors as one vector, shortened to the length ``clip`` where it is longer."""
    length = sqrt(sum(float(one.square().sum()) for one in change.values()))
    return {name: one * (clip / length) for name, one in change.items()} if length > clip else change
