"""Spans: nesting, inheritance, sums, limits, other threads and processes, and wrapping."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

from polyclinic.core import timing
from polyclinic.core.timing import Span, Timeline, Total, Wraps, record, recording, timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Time that passes only when a test says so."""
    now = [100]
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: now[0])
    return now


def test_a_span_counts_what_is_outside_of_those_inside(clock: list[int]) -> None:
    timeline = Timeline()
    with timeline.span("outer"):
        clock[0] += 5
        for _ in range(2):
            with timeline.span("inner"):
                clock[0] += 10
        clock[0] += 1
    inner, _, outer = timeline.spans
    assert (inner.name, inner.start, inner.end, inner.alone) == ("inner", 105, 115, 10)
    assert (outer.name, outer.start, outer.end, outer.within, outer.alone) == ("outer", 100, 126, 20, 6)
    assert timeline.totals == {
        Total("inner", "", -1, "", False): [20, 0, 2],
        Total("outer", "", -1, "", False): [6, 20, 1],
    }


def test_inner_spans_belong_to_the_site_round_and_component_around_them() -> None:
    timeline = Timeline()
    outer, middle = timeline.span("aggregate", number=3, component="mean"), timeline.span("site", "north", component="")
    with outer, middle, timeline.span("forward"):
        pass
    assert [(s.name, s.site, s.round, s.component) for s in timeline.spans] == [
        ("forward", "north", 3, ""), ("site", "north", 3, ""), ("aggregate", "", 3, "mean")
    ]  # fmt: skip


def test_a_span_ends_with_an_error_too(clock: list[int]) -> None:
    timeline = Timeline()

    def fail() -> None:
        clock[0] += 7
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), timeline.span("outer"), timeline.span("failing"):
        fail()
    assert [(span.name, span.alone) for span in timeline.spans] == [("failing", 7), ("outer", 0)]


def test_what_exceeds_the_limit_is_still_added_up(clock: list[int]) -> None:
    timeline = Timeline(most=3)
    for _ in range(5):
        with timeline.span("step"):
            clock[0] += 2
    assert (len(timeline.spans), timeline.dropped) == (3, 2)
    assert timeline.totals[Total("step", "", -1, "", False)] == [10, 0, 5]


def test_other_threads_are_beside() -> None:
    timeline = Timeline()

    def work() -> None:
        with timeline.span("writing"):
            pass

    with timeline.span("training"):
        thread = threading.Thread(target=work, name="writer")
        thread.start()
        thread.join()
    assert {(kind.name, kind.beside) for kind in timeline.totals} == {("writing", True), ("training", False)}
    assert sorted(timeline.threads.values()) == ["main", "writer"]
    assert len({span.thread for span in timeline.spans}) == 2


def test_a_device_is_waited_for_at_both_ends() -> None:
    timeline, waits = Timeline(), []
    timeline.wait = lambda: waits.append(len(timeline.spans))
    with timeline.span("step"):
        assert waits == [0]
    assert waits == [0, 0]


def test_spans_of_a_worker_come_as_plain_data(clock: list[int]) -> None:
    worker, parent = Timeline(), Timeline(most=2)
    worker.process = 77
    for site in ("north", "south", "west"):
        with worker.span("site", site=site, number=0):
            clock[0] += 10
    taken = json.loads(json.dumps(worker.take(most=2)))
    assert worker.take() == {**taken, "spans": [], "totals": [], "dropped": 0}
    parent.add(taken, "worker 1", offset=50)
    assert [(s.site, s.start, s.end, s.process) for s in parent.spans] == [("north", 50, 60, 77), ("south", 60, 70, 77)]
    assert parent.totals[Total("site", "west", 0, "", True)] == [10, 0, 1]
    assert parent.dropped == 1
    assert parent.processes[77] == "worker 1"
    parent.add({**taken, "dropped": 0}, "worker 1")
    assert (len(parent.spans), parent.dropped) == (2, 3)


def test_a_forked_process_begins_anew() -> None:
    timeline = Timeline()
    with timeline.span("round"):
        timeline.restart()
        with timeline.span("site"):
            pass
        assert [span.name for span in timeline.spans] == ["site"]
        assert timeline.spans[0].round == -1


def test_the_time_before_the_first_span(clock: list[int]) -> None:
    timeline = Timeline(start=40)
    timeline.note_start("start-up")
    assert [(span.name, span.start, span.end) for span in timeline.spans] == [("start-up", 40, 100)]


def test_recording_is_off_but_inside_of_its_block() -> None:
    assert recording() is None
    with timed("nothing"):
        pass
    timeline = Timeline()
    with record(timeline), timed("plan"):
        assert recording() is timeline
    assert recording() is None
    assert [span.name for span in timeline.spans] == ["plan"]


def test_wrapped_functions_are_timed_and_come_back() -> None:
    class Worker:
        def add(self, one: int, two: int = 2) -> int:
            return one + two

        def count(self, to: int):  # type: ignore[no-untyped-def]
            yield from range(to)

    plain_add, plain_count, module = Worker.add, Worker.count, SimpleNamespace(double=lambda number: 2 * number)
    timeline = Timeline()
    wrapped = Wraps(timeline)
    wrapped.time(Worker, "add", "adding", lambda _, one, **__: {"number": one})
    wrapped.time_each(Worker, "count", "counting", component="me")
    wrapped.time(module, "double", "doubling")
    assert Worker().add(1, two=5) == 6
    assert list(Worker().count(2)) == [0, 1]
    assert module.double(4) == 8
    assert [(s.name, s.round, s.component) for s in timeline.spans] == [
        ("adding", 1, ""), *[("counting", -1, "me")] * 3, ("doubling", -1, "")
    ]  # fmt: skip
    wrapped.undo()
    assert (Worker.add, Worker.count) == (plain_add, plain_count)
    module.double(4)
    assert len(timeline.spans) == 5


def test_a_span_of_a_generator_does_not_last_while_others_work(clock: list[int]) -> None:
    class Worker:
        def count(self):  # type: ignore[no-untyped-def]
            clock[0] += 1
            yield 0

    wrapped = Wraps(Timeline())
    wrapped.time_each(Worker, "count", "counting")
    for _ in Worker().count():
        clock[0] += 100
    assert sum(span.end - span.start for span in wrapped.timeline.spans) == 1


def test_spans_are_tuples() -> None:
    assert Span("a", 1, 9, 3, 0, 0, "", -1, "").alone == 5
