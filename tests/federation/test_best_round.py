"""The best round: means over sites decide, on common sites where some failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polyclinic.federation.best_round import note_scores
from polyclinic.federation.checkpoint import ServerState


def judged(
    rounds: Sequence[dict[str, float | None]], quorum: int = 1, patience: int | None = None
) -> tuple[list[int | None], ServerState]:
    """The best round after each of several validations; ``None`` is the score of a site that failed."""
    state, best = ServerState(), []
    for number, scores in enumerate(rounds):
        known = {site: dice for site, dice in scores.items() if dice is not None}
        note_scores(state, number, known, None not in scores.values(), quorum, patience)
        best.append(state.best_round)
    return best, state


def test_rounds_with_all_sites_are_compared_by_their_means() -> None:
    last = {"a": 0.5, "b": 0.4}
    best, state = judged([{"a": 0.2, "b": 0.6}, {"a": 0.5, "b": 0.2}, {**last}])
    assert best == [0, 0, 2]
    assert state.best_dice == pytest.approx(0.45)
    assert state.best_scores == last


@pytest.mark.parametrize(
    ("first", "second", "better"),
    [
        ({"a": 0.9, "b": 0.1, "c": 0.1}, {"a": None, "b": 0.2, "c": 0.2}, True),  # though its mean is lower
        ({"a": 0.1, "b": 0.5, "c": 0.5}, {"a": None, "b": 0.4, "c": 0.4}, False),  # though its mean is higher
        ({"a": None, "b": 0.5, "c": 0.5}, {"a": 0.1, "b": 0.6, "c": 0.6}, True),  # the site is back
        ({"a": 0.1, "b": 0.1, "c": 0.1}, {"a": 0.9, "b": None, "c": None}, False),  # below the quorum
        ({"a": None, "b": 0.1, "c": 0.1}, {"a": 0.9, "b": 0.9, "c": None}, False),  # one common site is no quorum
    ],
)
def test_where_sites_failed_common_sites_decide(
    first: dict[str, float | None], second: dict[str, float | None], better: bool
) -> None:
    best, _ = judged([first, second], quorum=2)
    assert best == [0, 1 if better else 0]


def test_a_first_validation_below_the_quorum_chooses_nothing() -> None:
    lost: dict[str, float | None] = {"a": 0.9, "b": None, "c": None}
    assert judged([lost, {"a": 0.1, "b": 0.1, "c": 0.1}], quorum=2)[0] == [None, 1]


def test_a_site_without_validation_images_is_not_missed() -> None:
    state = ServerState()
    assert note_scores(state, 0, {"north": 0.2}, complete=True, quorum=3, patience=None)
    assert note_scores(state, 1, {"north": 0.3}, complete=True, quorum=3, patience=None)
    assert not note_scores(state, 2, {}, complete=True, quorum=3, patience=None)


def test_validations_below_the_quorum_do_not_use_up_the_patience() -> None:
    whole: dict[str, float | None] = {"a": 0.5, "b": 0.5, "c": 0.5}
    lost: dict[str, float | None] = {"a": 0.1, "b": None, "c": None}
    _, state = judged([whole, lost, lost, lost], quorum=2, patience=2)
    assert (state.stale, state.stopped) == (0, False)
    _, state = judged([whole, {**whole, "a": 0.4}, {"a": 0.4, "b": None, "c": 0.4}], quorum=2, patience=2)
    assert (state.stale, state.stopped) == (2, True)
