"""Which round's model is the best so far, and when a run has waited long enough for a better one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from polyclinic.federation.checkpoint import ServerState


def note_scores(
    state: ServerState, number: int, scores: Mapping[str, float], complete: bool, quorum: int, patience: int | None
) -> bool:
    """Whether a round is the best so far, which the state then says; without ``scores`` nothing changes.

    ``scores`` are the sites' validation Dice. Their mean over sites decides, never their maximum and never test data.
    Where sites failed (``complete`` is false), the two rounds are compared on the sites that both of them have, if
    these are a ``quorum``. After ``patience`` validated rounds without a better one the run is stopped.
    """
    common = [site for site in scores if site in state.best_scores] if state.best_scores else list(scores)
    if not common or not (complete or len(common) >= quorum):
        return False
    before = _mean(state.best_scores, common) if state.best_scores else state.best_dice
    better = before is None or _mean(scores, common) > before
    if better:
        state.best_dice, state.best_scores = _mean(scores, scores), dict(scores)
        state.best_round, state.stale = number, 0
    else:
        state.stale += 1
        state.stopped = patience is not None and state.stale >= patience
    return better


def _mean(scores: Mapping[str, float], sites: Iterable[str]) -> float:
    values = [scores[site] for site in sites]
    return sum(values) / len(values)
