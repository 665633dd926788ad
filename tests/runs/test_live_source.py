"""Where ``polyclinic watch`` reads a run: retries while a server is silent, clocks, the token."""

from __future__ import annotations

import time
from typing import Any

import pytest

from polyclinic.runs import live_source

TOKEN = "a-token-of-the-test"


def a_view(**more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "method": "fedavg", "federation": "tiny", "engine": "flower", "part": "all", "round": 1, "rounds": 3,
        "started": now - 60, "updated": now, "finished": False, "dice": 0.5, "best_round": 1, "best_dice": 0.5,
        "sites": {"north": {"status": "training", "since": now}}, "lines": [], "said": 0, **more,
    }  # fmt: skip


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_source.time, "sleep", lambda seconds: None)


def test_the_token_is_not_in_the_texts_of_a_source() -> None:
    assert TOKEN not in repr(live_source.ServerSource("h", 1, TOKEN, None))


class Scripted:
    """Answers one after another."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)

    def read(self) -> live_source.LiveSnapshot:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return live_source.LiveSnapshot(answer, 0.0)


@pytest.mark.usefixtures("_no_pause")
def test_a_server_that_is_silent_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, start = live_source.LostError("lost"), a_view()
    seen = list(
        live_source.follow(Scripted(lost, lost, a_view(finished=True)), live_source.LiveSnapshot(start, 0.0), 1.0)
    )
    assert [one.note for one in seen] == ["", "lost", "lost", ""]
    assert [one.now for one in seen[:3]] == [0.0, 1.0, 2.0], "its clock goes on"
    assert seen[-1].over
    monkeypatch.setattr(live_source, "_SERVER_TIMEOUT", -1.0)
    with pytest.raises(live_source.LostError):
        list(live_source.follow(Scripted(lost), live_source.LiveSnapshot(start, 0.0), 1.0))


@pytest.mark.usefixtures("_no_pause")
def test_a_server_that_is_gone_after_the_last_round_ends_the_watch() -> None:
    lost = live_source.LostError("lost")
    seen = list(live_source.follow(Scripted(lost, lost, lost), live_source.LiveSnapshot(a_view(round=3), 0.0), 1.0))
    assert seen[-1].note == "The server has gone after the last round; its run folder has the result."
    assert not seen[-1].over


def test_times_are_those_of_the_servers_clock() -> None:
    assert live_source._date("Thu, 01 Jan 1970 00:01:00 GMT") == 60.0
    assert abs(live_source._date(None) - time.time()) < 60
    assert abs(live_source._date("soon") - time.time()) < 60
