"""Spans as events of Chrome's trace format, which ui.perfetto.dev opens."""

from __future__ import annotations

from typing import Any

from polyclinic.core.timing import Span, Timeline


def trace_events(timeline: Timeline) -> list[dict[str, Any]]:
    """Names of processes and threads, then a complete event a span; microseconds since the timeline's start."""
    events = [
        {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": title}}
        for process, title in sorted(timeline.processes.items())
    ]
    events += [
        {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
        for (process, thread), name in sorted(timeline.threads.items())
    ]
    return events + [
        {
            "name": f"{span.component}: {span.name}" if span.component else span.name,
            "cat": "component" if span.component else "polyclinic",
            "ph": "X",
            "ts": (span.start - timeline.start) / 1000,
            "dur": (span.end - span.start) / 1000,
            "pid": span.process,
            "tid": span.thread,
            "args": _about(span),
        }
        for span in sorted(timeline.spans, key=lambda span: (span.start, -span.end))
    ]


def _about(span: Span) -> dict[str, Any]:
    """What a click on the event shows."""
    about = {"site": span.site, "round": span.round + 1, "component": span.component}
    return {name: value for name, value in about.items() if value}
