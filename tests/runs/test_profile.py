"""The files of a profiled run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.timing import Timeline
from polyclinic.runs.profile import add_recorded_rounds, process_start, profile_of
from polyclinic.runs.start_run import run
from support import Interrupted, Killer


@pytest.fixture(scope="module", params=["inprocess", "workers"])
def profiled(request: pytest.FixtureRequest, tiny_recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a run, and the engine."""
    out = tmp_path_factory.mktemp("profiled") / "run"
    overrides = [f"engine.name={request.param}", "training.rounds=2", "engine.workers=2"]
    run(tiny_recipe_file, out=out, method="fedprox", overrides=overrides, profile=True)
    return out, request.param


def test_the_trace_opens_and_its_events_nest(profiled: tuple[Path, str]) -> None:
    out, engine = profiled
    trace = json.loads((out / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {"name", "ts", "dur", "pid", "tid", "args"} <= events[0].keys()
    assert len({event["pid"] for event in events}) == (1 if engine == "inprocess" else 3)
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events} <= named
    for thread in named:
        ends: list[float] = []
        for event in (event for event in events if (event["pid"], event["tid"]) == thread):
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3
            ends.append(event["ts"] + event["dur"])
    names = {event["name"] for event in events}
    assert {"start-up", "plan", "read images", "build network", "round", "site", "proximal: on_gradients", "backward",
            "optimiser", "aggregation", "combine", "validation", "checkpoint", "test", "writing", "save state"
            } <= names  # fmt: skip
    assert all(event["ts"] >= 0 for event in events)


def test_the_seconds_add_up(profiled: tuple[Path, str]) -> None:
    out, engine = profiled
    profile = json.loads((out / "profile.json").read_text())
    waited = sum(row["seconds"] for row in profile["phases"] if not row["beside"])
    assert waited + profile["other"] == pytest.approx(profile["seconds"])
    assert 0 <= profile["other"] < profile["seconds"]
    assert profile["rounds"].keys() == {"1", "2"}
    assert sum(profile["rounds"].values()) < profile["seconds"]
    assert profile["sites"].keys() == {"north", "south"}
    assert profile["components"].keys() == {"weighted_mean", "proximal"}
    assert profile["components"]["proximal"]["on_gradients"] > 0
    beside = {row["phase"] for row in profile["phases"] if row["beside"]}
    assert ("backward" in beside) == (engine == "workers")
    assert (profile["dropped"], profile["processes"]) == (0, 1 if engine == "inprocess" else 3)


def test_a_run_that_nobody_profiles_has_no_such_file(finished: Callable[..., Path]) -> None:
    assert not {"profile.json", "trace.json"} & {path.name for path in finished("fedavg").iterdir()}


def test_a_resumed_run_profiles_what_it_does_then(tiny_recipe_file: Path, tmp_path: Path) -> None:
    stops = Killer(lambda what, number, _: what == "round" and number == 1)
    inside = {"out": tmp_path / "run", "overrides": ["engine.name=inprocess"]}
    with pytest.raises(Interrupted):
        run(tiny_recipe_file, observer=stops, profile=True, **inside)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "run" / "profile.json").read_text())["rounds"].keys() == {"1", "2"}
    run(tiny_recipe_file, resume=True, profile=True, **inside)  # type: ignore[arg-type]
    resumed = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert resumed["rounds"].keys() == {"2", "3"}
    run(tiny_recipe_file, resume=True, profile=True, **inside)  # type: ignore[arg-type]
    assert json.loads((tmp_path / "run" / "profile.json").read_text()) == resumed, "nothing was done"


def test_rounds_of_other_processes_come_from_the_record() -> None:
    timeline = Timeline(start=0)
    events = [
        {"round": number, "seconds": {"training": 3.0, "validation": 1.0, "sites": {"north": 2.0, "south": 1.0}}}
        for number in range(2)
    ]
    add_recorded_rounds(timeline, events)
    profile = profile_of(timeline, end=10**10)
    assert {row["phase"]: row["seconds"] for row in profile["phases"]} == {
        "training": 6, "round at a site": 6, "validation": 2
    }  # fmt: skip
    assert all(row["beside"] for row in profile["phases"])
    assert {site: sum(phases.values()) for site, phases in profile["sites"].items()} == {"north": 4, "south": 2}
    assert profile["other"] == profile["seconds"] == 10
    starts = {(span.name, span.site, span.round): span.start / 10**9 for span in timeline.spans}
    assert starts["training", "", 1] == starts["round at a site", "south", 1] == 4


def test_a_process_knows_when_it_started() -> None:
    now = time.perf_counter_ns()
    assert now - 10**13 < process_start() <= time.perf_counter_ns()
