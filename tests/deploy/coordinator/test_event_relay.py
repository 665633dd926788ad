"""Events through a file of JSON lines: each arrives once, whole, and under a known name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from event_support import Listener, sample_arguments
from polyclinic.deploy.coordinator.event_relay import Follower, Relay
from polyclinic.federation.observer import EVENTS


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


def test_a_new_start_writes_over_the_events_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "relay.jsonl"
    Relay(file).on_message("old")
    Relay(file).on_message("new")
    listener = Listener()
    Follower(file, listener).look()
    assert listener.calls == [("on_message", "new")]
