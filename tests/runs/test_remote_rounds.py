"""Waiting for sites and repeating rounds, with a played server and no network."""

from __future__ import annotations

from typing import Any

import pytest

from polyclinic.federation.observer import Observer
from polyclinic.federation.server import NoQuorumError
from polyclinic.runs import remote_rounds
from polyclinic.runs.remote_rounds import fit_with_retries, wait_for_sites


class Messages(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that passes only in ``sleep``."""
    now = [0.0]
    monkeypatch.setattr(remote_rounds.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remote_rounds.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_all_sites_are_waited_for_and_later_a_quorum(clock: list[float]) -> None:
    messages = Messages()
    wait_for_sites(lambda: ("a", "b"), ["a", "b"], 1, 60, messages)
    assert (clock, messages.texts) == ([0.0], [])
    wait_for_sites(lambda: ("a",), ["a", "b"], 1, 60, messages)
    assert clock == [60.0]
    assert messages.texts == ["waiting for b (1 of 2 sites are there)"], "told once"
    wait_for_sites(lambda: ("a", "b")[: 1 + (clock[0] > 500)], ["a", "b"], 2, 60, messages)
    assert clock == [501.0], "a quorum is waited for without end"


class PlayedServer:
    """Rounds that fail as often as planned; ``plan`` is shared by the servers of one run."""

    def __init__(self, plan: list[int]) -> None:
        self.plan, self.rounds, self.quorum = plan, [0], 1
        self.state = type("State", (), {"round": 0})

    @property
    def done(self) -> bool:
        return not self.plan

    def choose(self, number: int) -> list[str]:
        return ["a", "b"]

    def round(self) -> None:
        if self.plan[0]:
            self.plan[0] -= 1
            raise NoQuorumError("Round 1 got none; mend the sites and go on with --resume.")
        self.plan.pop(0)


def fit(plan: list[int], messages: Observer, **more: Any) -> tuple[Any, list[PlayedServer]]:
    opened: list[PlayedServer] = []

    def reopen() -> Any:
        opened.append(PlayedServer(plan))
        return opened[-1]

    arguments: dict[str, Any] = {"online": lambda: ("a",), "check_round": lambda _: None, **more}
    return fit_with_retries(PlayedServer(plan), reopen, observer=messages, **arguments), opened  # type: ignore[arg-type]


def test_a_failed_round_is_repeated_from_the_checkpoint_after_longer_and_longer_pauses(clock: list[float]) -> None:
    messages = Messages()
    last, opened = fit([0, 3, 1], messages)
    assert last is opened[-1]
    assert len(opened) == 4
    assert clock == [5.0 + 20.0 + 60.0 + 5.0], "a round that worked starts the count anew"
    assert messages.texts[1] == "Round 1 got none; in 20 s it is repeated (2 of 3)."


def test_after_the_last_pause_the_error_is_raised(clock: list[float]) -> None:
    with pytest.raises(NoQuorumError, match="mend the sites"):
        fit([4], Messages())
    assert clock == [85.0]


def test_a_round_waits_for_a_quorum_and_is_checked_when_it_is_done(clock: list[float]) -> None:
    messages, checked = Messages(), []
    fit([0, 0], messages, online=lambda: ("b",) if clock[0] > 2 else (), check_round=checked.append)
    assert clock == [3.0]
    assert messages.texts == ["waiting for 1 of a, b to be there"]
    assert len(checked) == 2
