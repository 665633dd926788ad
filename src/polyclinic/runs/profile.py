"""``run --profile``: where a run's time went, as ``profile.json`` and, span by span, ``trace.json``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from polyclinic.core.files import write_json, write_text
from polyclinic.core.timing import Timeline, Wraps, recording
from polyclinic.core.trace_events import trace_events
from polyclinic.federation.profiling import profiled
from polyclinic.runs import execution, local_execution
from polyclinic.runs.event_recorder import EventRecorder
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.plan import RunPlan

PROFILE, TRACE = "profile.json", "trace.json"
_NANOSECONDS = 10**9
# Made of other spans: what is left of them has no name of its own.
_HOLD_OTHERS = frozenset({"round", "site", "local training", "batch", "step", "gradients", "losses", "scoring"})


@contextmanager
def profiled_run(timeline: Timeline) -> Iterator[Timeline]:
    """Time what a run does around its rounds, too."""
    wrapped = Wraps(timeline)
    try:
        wrapped.time(local_execution, "prepare_sites", "read images")
        wrapped.time(execution, "score_part", "test")
        wrapped.time(execution, "summary_of", "writing")
        wrapped.time(execution, "rows_to_csv", "writing")
        wrapped.time(execution, "write_json", "writing")
        wrapped.time(EventRecorder, "on_round", "writing")
        wrapped.replace(RunPlan, "open_workspace", lambda original: _opening(timeline, original))
        timeline.note_start("start-up")
        with profiled(timeline):
            yield timeline
    finally:
        wrapped.undo()


def _opening(timeline: Timeline, original: Callable[[RunPlan], Any]) -> Callable[[RunPlan], Any]:
    def open_workspace(plan: RunPlan) -> Any:
        with timeline.span("build network"):
            workspace = original(plan)
        timeline.components = [component.name for component in workspace.components]
        if workspace.device.type == "cuda":
            timeline.wait = torch.cuda.synchronize  # else a phase would end when its work has only been asked for
        return workspace

    return open_workspace


def process_start() -> int:
    """When this process started, by ``time.perf_counter_ns``; now where the system does not tell."""
    now = time.perf_counter_ns()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks, seconds_up = int(fields[19]), time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, ValueError, IndexError):
        return now
    return now - int((seconds_up - ticks / os.sysconf("SC_CLK_TCK")) * _NANOSECONDS)


def add_recorded_rounds(timeline: Timeline, events: Sequence[dict[str, Any]]) -> None:
    """The seconds that servers and sites in other processes have written down, of rounds that were not timed here.

    When a round began is not written down: in the trace they follow each other.
    """
    at, process = timeline.start, 0
    spans, totals, threads = list[list[Any]](), list[list[Any]](), {0: "server"}
    for event in events:
        seconds, number = event["seconds"], event["round"]
        pieces = [("training", "", seconds["training"]), ("validation", "", seconds["validation"])]
        begun = at
        for name, site, taken in pieces:
            length = int(taken * _NANOSECONDS)
            spans.append([name, at, at + length, 0, process, 0, site, number, ""])
            totals.append([name, site, number, "", True, length, 0, 1])
            at += length
        for site, taken in seconds["sites"].items():
            thread = next((key for key, known in threads.items() if known == site), len(threads))
            threads[thread] = site
            length = int(taken * _NANOSECONDS)
            spans.append(["round at a site", begun, begun + length, 0, process, thread, site, number, ""])
            totals.append(["round at a site", site, number, "", True, length, 0, 1])
    taken_apart = {"process": process, "spans": spans, "totals": totals, "threads": list(threads.items()), "dropped": 0}
    timeline.add(taken_apart, "server and sites, as recorded")


def profile_of(timeline: Timeline, end: int | None = None) -> dict[str, Any]:
    """Plain data: seconds by phase, by site and by component. A span's seconds are those outside of spans inside it."""
    wall = (time.perf_counter_ns() if end is None else end) - timeline.start
    known = sum(amounts[0] for kind, amounts in timeline.totals.items() if not kind.beside)
    phases: dict[tuple[str, bool], list[float]] = {}
    sites: dict[str, dict[str, float]] = {}
    components: dict[str, dict[str, float]] = {name: {} for name in timeline.components}
    rounds: dict[int, float] = {}
    for kind, (alone, within, count) in timeline.totals.items():
        title = "components" if kind.component else kind.name + ", the rest" * (kind.name in _HOLD_OTHERS)
        row = phases.setdefault((title, kind.beside), [0.0, 0])
        row[0], row[1] = row[0] + alone / _NANOSECONDS, row[1] + count
        if kind.site:
            _add(sites.setdefault(kind.site, {}), title, alone)
        if kind.component:
            _add(components.setdefault(kind.component, {}), kind.name, alone)
        if kind.name == "round":
            rounds[kind.round + 1] = rounds.get(kind.round + 1, 0.0) + (alone + within) / _NANOSECONDS
    rows = [{"phase": n, "seconds": s, "count": c, "beside": b} for (n, b), (s, c) in phases.items()]
    return {
        "seconds": wall / _NANOSECONDS,
        "other": (wall - known) / _NANOSECONDS,
        "phases": sorted(rows, key=lambda row: -float(row["seconds"])),
        "sites": sites,
        "components": components,
        "rounds": rounds,
        "processes": len(timeline.processes),
        "spans": len(timeline.spans),
        "dropped": timeline.dropped,
    }


def _add(sums: dict[str, float], name: str, nanoseconds: int) -> None:
    sums[name] = sums.get(name, 0.0) + nanoseconds / _NANOSECONDS


@contextmanager
def profile_written(folder: RunFolder) -> Iterator[None]:
    """Write both files when the block ends, however it ends, if somebody records."""
    timeline = recording()
    if timeline is None:
        yield
        return
    before = len(list(folder.events()))
    try:
        yield
    finally:
        if not any(kind.name == "round" for kind in timeline.totals):
            add_recorded_rounds(timeline, list(folder.events())[before:])
        trace = {"displayTimeUnit": "ms", "traceEvents": trace_events(timeline)}
        write_text(folder.path / TRACE, json.dumps(trace))
        write_json(folder.path / PROFILE, profile_of(timeline))
