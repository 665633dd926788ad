"""Which site's answer breaks what the server computes of all of them: found by leaving sites out, not by their size.

Numbers that break a formula need not be large: a negative number under a root is as bad as an enormous one. So the
component computes once more without each site in turn; that happens only in a round that is lost anyway.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from polyclinic.components.base import Component
from polyclinic.components.rounds import ServerRound
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.federation.recovery import NoCulpritError, SpoiltRoundError, aggregate_problem
from polyclinic.federation.shared_bounds import Declared

_STANDS_OUT = "breaks it, and without it nothing is wrong"
_Attempt = Callable[[Component, ServerRound, Collection[str]], tuple[Tensors, Tensors]]
"""A component's work on the answers of some sites: the weights that it has made, and what it would broadcast."""


def combined(component: Component, server: ServerRound, shared: Mapping[str, Tensors], declared: Declared) -> Tensors:
    """What a component makes of what sites shared; ``SpoiltRoundError`` where a site's numbers break it."""

    def attempt(one: Component, its_round: ServerRound, sites: Collection[str]) -> tuple[Tensors, Tensors]:
        before = dict(its_round.weights)
        broadcast = one.combine(its_round, {site: tensors for site, tensors in shared.items() if site in sites})
        return {n: t for n, t in its_round.weights.items() if t is not before.get(n)}, broadcast

    return _checked(attempt, component, server, list(shared), declared)[1]


def aggregated(
    component: Component, server: ServerRound, updates: Sequence[Update], names: Collection[str], declared: Declared
) -> Tensors:
    """The new weights of an aggregation over a list; ``SpoiltRoundError`` where a site's update breaks it."""

    def attempt(one: Component, its_round: ServerRound, sites: Collection[str]) -> tuple[Tensors, Tensors]:
        weights = one.aggregate(its_round, [update for update in updates if update.site in sites])
        return {name: weights[name] for name in names}, weights

    return _checked(attempt, component, server, [update.site for update in updates], declared, broadcasts=False)[1]


def _checked(
    attempt: _Attempt, component: Component, server: ServerRound, sites: Sequence[str], declared: Declared,
    broadcasts: bool = True,
) -> tuple[Tensors, Tensors]:  # fmt: skip
    """A component's work on all answers, or an error that says which site's answer broke it."""
    template, state, weights = copy.copy(component), dict(component.state), dict(server.weights)

    def problem_of(made: tuple[Tensors, Tensors]) -> str | None:
        return aggregate_problem(made[0], {component.name: made[1]} if broadcasts and made[1] else {}, declared)

    def breaks(some: Collection[str]) -> bool:
        twin = copy.copy(template)
        twin.state = dict(state)
        trial = replace(server, weights=dict(weights), notes={}, warn=lambda _: None)
        try:
            return problem_of(attempt(twin, trial, some)) is not None
        except Exception:  # whatever it is: here is only asked whether it goes well
            return True

    try:
        made = attempt(component, server, sites)
        problem = problem_of(made)
    except PolyclinicError:
        raise
    except Exception as error:  # numbers that nobody thought of may raise anything
        site = culprit(sites, breaks)
        if site is None:
            raise
        problem = f"component {component.name} cannot work with what it got ({type(error).__name__})"
        raise SpoiltRoundError(server.round, site, problem, _STANDS_OUT) from error
    if problem is None:
        return made
    site = culprit(sites, breaks)
    if site is None:
        raise NoCulpritError(server.round, problem)
    raise SpoiltRoundError(server.round, site, problem, _STANDS_OUT)


def culprit(sites: Sequence[str], breaks: Callable[[Collection[str]], bool]) -> str | None:
    """The one site without which nothing breaks; of several that break it, the first that does so alone."""
    healing = [site for site in sites if not breaks([other for other in sites if other != site])]
    if len(healing) == 1:
        return healing[0]
    alone = [site for site in sites if breaks([site])]
    return alone[0] if 0 < len(alone) < len(sites) else None
