"""Events: one list, forwarded whole by everything that forwards them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.deploy.coordinator.event_relay import Follower, Relay
from polyclinic.federation.observer import EVENTS, ForwardingObserver, Observer, Observers, when

SAMPLES: dict[str, Any] = {
    "part": "all", "sites": ["north", "south"], "rounds": 3, "done": 1, "round_number": 2, "site": "north",
    "status": "training", "reason": "failed", "details": "trace", "event": {"round": 0}, "text": "hello",
    "summary": {"average": {"dice": 0.5}},
}  # fmt: skip


class Listener(ForwardingObserver):
    """Notes every event."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def forward(self, event: str, *arguments: Any) -> None:
        self.calls.append((event, *arguments))


def sample_arguments(event: str) -> dict[str, Any]:
    names = list(inspect.signature(getattr(Observer, event)).parameters)[1:]
    return {name: SAMPLES[name] for name in names}


def test_the_list_of_events_is_that_of_the_class() -> None:
    assert EVENTS == ("on_start", "on_site", "on_status", "on_refusal", "on_round", "on_message", "on_result")
    assert {name for name in dir(Observer) if not name.startswith("__")} == set(EVENTS)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("event", EVENTS)
def test_several_observers_are_told_every_event_in_their_order(event: str, by_name: bool) -> None:
    first, second = Listener(), Listener()
    second.calls = first.calls
    named = sample_arguments(event)
    arguments, keywords = ((), named) if by_name else (tuple(named.values()), {})
    getattr(Observers([first, Observer(), second]), event)(*arguments, **keywords)
    assert first.calls == [(event, *named.values())] * 2


@pytest.mark.parametrize("event", EVENTS)
def test_the_relay_carries_every_event_to_another_process(event: str, tmp_path: Path) -> None:
    listener, file = Listener(), tmp_path / "relay.jsonl"
    follower = Follower(file, listener)
    follower.look()
    relay, named = Relay(file), sample_arguments(event)
    getattr(relay, event)(*(tuple(value) if isinstance(value, list) else value for value in named.values()))
    follower.look()
    follower.look()
    assert listener.calls == [(event, *named.values())]


def test_wrong_arguments_of_an_event_are_an_error_at_once() -> None:
    with pytest.raises(TypeError):
        Observers([]).on_site(1)  # type: ignore[call-arg]


def test_the_follower_waits_for_whole_lines_and_ignores_unknown_names(tmp_path: Path) -> None:
    listener, file = Listener(), tmp_path / "relay.jsonl"
    follower = Follower(file, listener)
    line = json.dumps(["on_message", "hello"]) + "\n"
    file.write_text(json.dumps(["__init__", "evil"]) + "\n" + line + line[:9])
    follower.look()
    assert listener.calls == [("on_message", "hello")]
    with file.open("a") as end:
        end.write(line[9:])
    follower.look()
    assert listener.calls == [("on_message", "hello")] * 2


def test_a_round_in_words() -> None:
    assert (when(0), when(-1)) == ("round 1", "before the first round")
