"""Where the time goes: spans with a name, nested in each thread, while somebody asks for them.

Nothing here costs anything while no ``Timeline`` records: what is timed is wrapped when a recording starts and
unwrapped when it ends (``Wraps``). Times are those of ``time.perf_counter_ns``, which all processes of a machine share.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, NamedTuple

MOST_SPANS = 100_000
"""Spans that are kept one by one; those after them are only added up."""


class Span(NamedTuple):
    """One piece of work. ``within`` is the part of it, in nanoseconds, that was spent in spans inside of it."""

    name: str
    start: int
    end: int
    within: int
    process: int
    thread: int
    site: str
    round: int
    component: str

    @property
    def alone(self) -> int:
        """Nanoseconds outside of all spans inside of it."""
        return self.end - self.start - self.within


class Total(NamedTuple):
    """Sum over all spans of one kind; ``beside`` are those of other threads and processes than the one that waits."""

    name: str
    site: str
    round: int
    component: str
    beside: bool


class _Open:
    """A span that has not ended; what is inside of it inherits site, round and component."""

    __slots__ = ("component", "name", "round", "site", "start", "within")

    def __init__(self, name: str, site: str, number: int, component: str) -> None:
        self.name, self.site, self.round, self.component = name, site, number, component
        self.within = 0
        self.start = time.perf_counter_ns()


_NOTHING = _Open("", "", -1, "")  # around the outermost spans


class Timeline:
    """Spans of this process, and those that other processes hand in."""

    def __init__(self, start: int | None = None, most: int = MOST_SPANS) -> None:
        """``start`` is when the work to account for began, by ``time.perf_counter_ns``; now by default."""
        self.start = time.perf_counter_ns() if start is None else start
        self.most = most
        self.components: list[str] = []
        """All that a profile should name, also where none of their time was noted."""
        self.wait: Callable[[], None] | None = None
        """Waits until a device has done what it was asked for, where work goes on beside the program."""
        self._begin()

    def _begin(self) -> None:
        self.process, self.main = os.getpid(), threading.get_native_id()
        self.processes: dict[int, str] = {self.process: "polyclinic"}
        self.threads: dict[tuple[int, int], str] = {}
        """Names of the threads, by process and thread."""
        self._lock, self._local = threading.Lock(), threading.local()
        self.spans: list[Span] = []
        self.totals: dict[Total, list[int]] = {}
        """Nanoseconds alone, nanoseconds in spans inside, and number of spans."""
        self.dropped = 0

    def restart(self) -> None:
        """Begin anew in a process that was forked off: what is open and noted belongs to the one before."""
        self._begin()
        self.start = time.perf_counter_ns()

    @contextmanager
    def span(
        self, name: str, site: str | None = None, number: int | None = None, component: str | None = None
    ) -> Iterator[None]:
        """Note what the block takes; site, round and component are those of the span around it, unless given."""
        if self.wait is not None:
            self.wait()
        stack = self._stack()
        around = stack[-1] if stack else _NOTHING
        opened = _Open(
            name,
            around.site if site is None else site,
            around.round if number is None else number,
            around.component if component is None else component,
        )
        stack.append(opened)
        try:
            yield
        finally:
            if self.wait is not None:
                self.wait()
            end, thread = time.perf_counter_ns(), threading.get_native_id()
            stack.pop()
            around.within += end - opened.start
            self._keep(
                Span(
                    name, opened.start, end, opened.within, self.process, thread, opened.site, opened.round,
                    opened.component,
                )
            )  # fmt: skip

    def note_start(self, name: str) -> None:
        """Give the time from the timeline's start until now a span of its own."""
        self._stack()
        thread, now = threading.get_native_id(), time.perf_counter_ns()
        self._keep(Span(name, self.start, now, 0, self.process, thread, "", -1, ""))

    def _stack(self) -> list[_Open]:
        stack: list[_Open] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
            thread = threading.get_native_id()
            name = "main" if thread == self.main else threading.current_thread().name
            self.threads[self.process, thread] = name
        return stack

    def _keep(self, span: Span) -> None:
        kind = Total(span.name, span.site, span.round, span.component, span.thread != self.main)
        with self._lock:
            self._add(kind, span.alone, span.within, 1)
            self._keep_single(span)

    def _keep_single(self, span: Span) -> None:
        if len(self.spans) < self.most:
            self.spans.append(span)
        else:
            self.dropped += 1

    def _add(self, kind: Total, *amounts: int) -> None:
        before = self.totals.get(kind, (0, 0, 0))
        self.totals[kind] = [total + amount for total, amount in zip(before, amounts, strict=True)]

    def take(self, most: int = 2000) -> dict[str, Any]:
        """Everything noted since the last time, as plain data for another process; at most so many single spans."""
        with self._lock:
            spans, self.spans = self.spans, []
            totals, self.totals = self.totals, {}
            dropped, self.dropped = self.dropped + max(0, len(spans) - most), 0
        return {
            "process": self.process,
            "spans": [list(span) for span in spans[:most]],
            "totals": [[*kind, *amounts] for kind, amounts in totals.items()],
            "threads": [[thread, name] for (_, thread), name in self.threads.items()],
            "dropped": dropped,
        }

    def add(self, taken: Mapping[str, Any], name: str, offset: int = 0) -> None:
        """What ``take`` gave in another process, of this name; ``offset`` is how far its clock is ahead of ours."""
        with self._lock:
            self.processes[taken["process"]] = name
            self.threads |= {(taken["process"], thread): about for thread, about in taken["threads"]}
            for values in taken["spans"]:
                span = Span(*values)
                self._keep_single(span._replace(start=span.start - offset, end=span.end - offset))
            for name_, site, number, component, _, *amounts in taken["totals"]:
                self._add(Total(name_, site, number, component, True), *amounts)
            self.dropped += taken["dropped"]


_recording: Timeline | None = None


def recording() -> Timeline | None:
    """The timeline that is being recorded in this process, if any."""
    return _recording


@contextmanager
def record(timeline: Timeline) -> Iterator[Timeline]:
    """Make it the one that ``recording`` gives, for a block."""
    global _recording
    before, _recording = _recording, timeline
    try:
        yield timeline
    finally:
        _recording = before


def timed(name: str) -> AbstractContextManager[None]:
    """A span of the timeline that is being recorded, if any; for what happens a few times in a run."""
    return nullcontext() if _recording is None else _recording.span(name)


class Wraps:
    """Functions and methods that are replaced by timed ones, until ``undo`` puts them back."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._before: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, attribute: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put ``make`` of a class's or module's own function in its place."""
        original = vars(owner)[attribute]
        self._before.append((owner, attribute, original))
        setattr(owner, attribute, make(original))

    def time(self, owner: Any, attribute: str, name: str, about: Callable[..., dict[str, Any]] | None = None) -> None:
        """Give every call a span; ``about`` makes site, round or component of it from the arguments."""
        timeline = self.timeline

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def timed(*arguments: Any, **named: Any) -> Any:
                with timeline.span(name, **(about(*arguments, **named) if about is not None else {})):
                    return original(*arguments, **named)

            return timed

        self.replace(owner, attribute, make)

    def time_each(self, owner: Any, attribute: str, name: str, component: str | None = None) -> None:
        """Give every item that a generator makes a span."""
        timeline = self.timeline

        def make(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
            @wraps(original)
            def timed(*arguments: Any, **named: Any) -> Iterator[Any]:
                items = original(*arguments, **named)
                while True:
                    with timeline.span(name, component=component):
                        try:
                            item = next(items)
                        except StopIteration:
                            return
                    yield item

            return timed

        self.replace(owner, attribute, make)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._before:
            owner, attribute, original = self._before.pop()
            setattr(owner, attribute, original)
