"""Events: one list, forwarded whole by everything that forwards them."""

from __future__ import annotations

import pytest

from event_support import Listener, sample_arguments
from polyclinic.federation.observer import EVENTS, Observer, Observers, when


def test_the_list_of_events_is_that_of_the_class() -> None:
    assert EVENTS == (
        "on_start",
        "on_preparation",
        "on_site",
        "on_status",
        "on_refusal",
        "on_round",
        "on_rollback",
        "on_message",
        "on_result",
    )
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


def test_wrong_arguments_of_an_event_are_an_error_at_once() -> None:
    with pytest.raises(TypeError):
        Observers([]).on_site(1)  # type: ignore[call-arg]


def test_a_round_in_words() -> None:
    assert (when(0), when(-1)) == ("round 1", "before the first round")
