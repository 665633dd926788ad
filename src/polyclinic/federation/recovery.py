"""Rounds that spoilt the model: how that is seen, which site stands out, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.checks import is_finite, values_problem
from polyclinic.exchange.declarations import Shared
from polyclinic.federation.update_bounds import NormHistory, deviations

MOST_RETURNS = 5
"""How often a run takes a round back by itself; a site that was named twice takes no part in it any more."""
_STANDS_OUT = 10.0  # times the usual change; below that a training that diverged has other reasons
_DIVERGED = ("NaN or infinite", "training diverged")

Returns = list[tuple[int, str, str]]
"""The rounds that were taken back, each with the site that it was repeated without, and why."""


class NoQuorumError(PolyclinicError):
    """Too few good updates came back; the round changed nothing and can be repeated."""


class SpoiltRoundError(NoQuorumError):
    """A site's update made a round useless: round ``number`` is to be repeated without ``site``."""

    def __init__(self, number: int, site: str, reason: str, why: str = "deviates most") -> None:
        """``why`` says how the site's update is known to be the cause."""
        super().__init__(
            f"Round {number + 1} was spoilt: {reason}; the update of site '{site}' {why}, look into it and go on with "
            "--resume."
        )
        self.number, self.site, self.reason, self.why = number, site, reason, why


class NoCulpritError(NoQuorumError):
    """A round came to nothing that can be used, and no site's answer can be named as the reason."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(
            f"Round {number + 1} was spoilt: {problem}; no site's update stands out, so that none is left out; look "
            "into the sites and go on with --resume."
        )


def left_out(returns: Returns, number: int) -> dict[str, str]:
    """The sites that a round goes on without, and why, by site."""
    named = [site for _, site, _ in returns]
    reasons = {site: "left out: two rounds had to be taken back for it" for site in named if named.count(site) > 1}
    now = {site: f"left out of the repeated round: {why}" for repeated, site, why in returns if repeated == number}
    return {**reasons, **now}


def says_diverged(reason: str) -> bool:
    """Whether a site's reason for giving nothing is that its training had no finite result."""
    return any(words in reason for words in _DIVERGED)


def training_collapsed(
    chosen: Sequence[str], refused: Mapping[str, str], losses: Iterable[Mapping[str, float]]
) -> bool:
    """Whether most sites of a round could not train on what they got: no finite weights, or no finite loss."""
    broken = sum(bool(terms) and not any(map(isfinite, terms.values())) for terms in losses)
    diverged = sum(says_diverged(reason) for reason in refused.values())
    return 2 * (broken + diverged) > len(chosen)


def suspect(history: NormHistory, number: int) -> str | None:
    """The site whose update of a round stands out, by its weights or by what it shared, if one does."""
    by_site = deviations(history, number)
    site = max(sorted(by_site), key=by_site.__getitem__, default=None)
    return site if site is not None and by_site[site] >= _STANDS_OUT else None


def aggregate_problem(
    weights: Mapping[str, Tensor],
    shared: Mapping[str, Mapping[str, Tensor]],
    declared: Mapping[str, tuple[Shared, ...]],
) -> str | None:
    """Why new global weights, or what components would broadcast, must not replace the old ones, or ``None``."""
    for name, tensor in weights.items():
        problem = values_problem(name, tensor)
        if problem is not None:
            return f"in the new global model {problem}"
    for component, tensors in shared.items():
        if all(declaration.finite for declaration in declared.get(component, ())):
            broken = next((name for name, tensor in tensors.items() if not is_finite(tensor)), None)
            if broken is not None:
                return f"what component {component} would broadcast as '{broken}' holds NaN or infinite values"
    return None
