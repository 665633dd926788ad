"""What ``live.json`` says while a run goes on, and after it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import polyclinic
from polyclinic.federation.observer import Observer
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.live_view import Live, LiveView, recorded
from support import Interrupted, Killer


def event(number: int, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "part": "all", "round": number, "sites": ["a", "b"], "refused": {}, "losses": {"a": {"dice": 0.5, "ce": 0.25}},
        "validation": {"dice": 0.5, "sites": {"a": 0.5}}, "best_round": number, "bytes_up": {"a": 10},
        "bytes_down": {"a": 20, "b": 20}, "seconds": {"training": 2.0, "validation": 1.0}, "warnings": [],
    }  # fmt: skip
    return plain | more


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


@pytest.fixture
def live(folder: RunFolder) -> LiveView:
    view = LiveView(folder, "fedavg", "tiny", "inprocess")
    view.on_start("all", ["a", "b"], 3, 0)
    return view


def statuses(live: LiveView) -> dict[str, str]:
    return {site: entry["status"] for site, entry in live.view["sites"].items()}


class Reader(Observer):
    """Reads the file at every change of a site."""

    def __init__(self, out: Path) -> None:
        self.file = out / "live.json"
        self.views: list[dict[str, Any]] = []

    def on_status(self, round_number: int, site: str, status: str) -> None:
        if status != "waiting":
            self.views.append(json.loads(self.file.read_text()))


def test_in_one_process_one_site_works_and_the_others_wait(tiny_recipe_file: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path / "run")
    result = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", observer=reader)
    seen = [{site: entry["status"] for site, entry in view["sites"].items()} for view in reader.views]
    one_round = [
        {"north": "training", "south": "waiting"},
        {"north": "done", "south": "training"},
        {"north": "scoring", "south": "waiting"},
        {"north": "done", "south": "waiting"},
        {"north": "done", "south": "scoring"},
        {"north": "done", "south": "done"},
    ]
    assert seen == [*one_round * 3, *one_round[2:]], "three rounds and the test"
    assert [view["round"] for view in reader.views] == [0] * 6 + [1] * 6 + [2] * 6 + [3] * 4, "never back"
    last = json.loads((tmp_path / "run" / "live.json").read_text())
    assert (last["finished"], last["average"]) == (True, result.summary["average"])
    assert last["best_round"] in (1, 2, 3)
    assert last["best_dice"] >= last["dice"] > 0
    assert sum(entry["bytes_up"] for entry in last["sites"].values()) == result.summary["bytes_up"]
    assert not list((tmp_path / "run").glob(".live*"))


def test_a_resumed_run_counts_everything_once(tiny_recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):  # after the second round was recorded, before its checkpoint
        polyclinic.run(
            tiny_recipe_file, out=out, observer=Killer(lambda kind, number, _: (kind, number) == ("round", 1))
        )
    stopped = json.loads((out / "live.json").read_text())
    assert (stopped["stopped"], stopped["finished"], stopped["round"]) == ("Interrupted: ", False, 2)
    summary = polyclinic.run(tiny_recipe_file, out=out, resume=True).summary
    view = json.loads((out / "live.json").read_text())
    assert "stopped" not in view
    assert "goes on after round 1 of 3" in view["lines"]
    assert sum(entry["bytes_up"] for entry in view["sites"].values()) == summary["bytes_up"]
    events = RunFolder(out).events()
    assert view["sites"]["north"]["bytes_down"] == sum(e["bytes_down"]["north"] for e in events)


def test_an_interruption_is_no_fault(folder: RunFolder) -> None:
    with pytest.raises(KeyboardInterrupt), Live(folder, "fedavg", "tiny", "inprocess"):
        raise KeyboardInterrupt
    assert json.loads((folder.path / "live.json").read_text())["stopped"] == "interrupted"


def test_a_view_that_cannot_be_written_ends_no_run(folder: RunFolder) -> None:
    view = Live(folder, "fedavg", "tiny", "inprocess")
    view.path = folder.path / "gone" / "live.json"
    view.on_message("still there")


def test_a_site_that_is_not_drawn_rests(live: LiveView) -> None:
    live.on_status(0, "b", "training")
    assert statuses(live) == {"a": "resting", "b": "training"}
    live.on_site(0, "b")
    live.on_status(1, "a", "training")
    assert statuses(live) == {"a": "training", "b": "resting"}


def test_what_a_site_says_of_itself_is_no_work(live: LiveView) -> None:
    live.on_status(-1, "a", "asked")
    live.on_status(-1, "a", "done")
    live.on_status(-1, "b", "asked")
    assert statuses(live) == {"a": "ready", "b": "asked"}
    live.on_refusal(-1, "b", "has another version", "")
    assert live.view["lines"] == ["b has another version"]
    live.on_start("all", ["a", "b"], 3, 2)
    assert statuses(live) == {"a": "waiting", "b": "refused"}
    assert live.view["round"] == 2


@pytest.mark.parametrize(
    ("told", "reason", "status"),
    [
        ("training", "failed: ValueError: no", "failed"),
        ("failed", "failed: ValueError: no", "failed"),
        ("late", "failed: is late: no answer", "late"),
        ("away", "failed: is not connected", "away"),
        ("done", "update refused: NaN in x", "refused"),
        ("scoring", "validation failed: ValueError", "failed"),
    ],
)
def test_a_problem_has_its_status(live: LiveView, told: str, reason: str, status: str) -> None:
    live.on_status(0, "a", told)
    live.on_refusal(0, "a", reason, "")
    entry = live.view["sites"]["a"]
    assert (entry["status"], entry["reason"]) == (status, reason)
    assert live.view["lines"] == [f"round 1: a {reason}"]


def test_a_reason_stays_until_an_update_is_accepted(live: LiveView) -> None:
    live.on_site(0, "a")
    live.on_refusal(0, "a", "validation failed: no", "")
    live.on_round(event(0))
    assert live.view["sites"]["a"]["reason"] == "validation failed: no", "though the same round has its losses"
    live.on_site(1, "a")
    assert "reason" not in live.view["sites"]["a"]


def test_a_round_without_validation_keeps_the_last_dice(live: LiveView) -> None:
    live.on_round(event(0))
    live.on_round(
        event(1, validation={"dice": None, "sites": {}}, best_round=0, losses={"a": {"dice": None, "ce": 1.0}})
    )
    view = live.view
    assert (view["round"], view["dice"], view["best_round"], view["best_dice"]) == (2, 0.5, 1, 0.5)
    assert view["seconds"] == 3.0
    assert view["sites"]["a"] | {"since": 0} == {
        "status": "waiting", "since": 0, "loss": None, "dice": 0.5, "bytes_up": 20, "bytes_down": 40,
    }  # fmt: skip
    json.dumps(view, allow_nan=False)


def test_a_new_part_starts_with_new_numbers_and_the_bytes_of_all(folder: RunFolder, live: LiveView) -> None:
    folder.add_event(event(0, part="without-c"))
    live.on_round(event(0))
    live.on_start("without-a", ["b", "c"], 3, 0)
    assert statuses(live) == {"b": "waiting", "c": "waiting", "a": "left out"}
    assert live.view["dice"] is live.view["best_round"] is None
    a = live.view["sites"]["a"]
    assert (a["bytes_up"], a["bytes_down"], a.get("dice"), a.get("loss")) == (10, 20, None, None)


def test_rounds_that_were_taken_back_count_no_more(folder: RunFolder, live: LiveView) -> None:
    for number in (0, 1):
        folder.add_event(event(number))
        live.on_round(event(number))
    folder.drop_events_after("all", 1)
    live.on_rollback(1)
    assert live.view["round"] == 1
    assert live.view["sites"]["a"]["bytes_up"] == 10
    assert statuses(live).keys() == {"a", "b"}
    assert "left out" not in statuses(live).values()


def test_nothing_new_is_not_written(folder: RunFolder) -> None:
    view = Live(folder, "fedavg", "tiny", "flower")
    view.on_start("all", ["a"], 3, 0)
    view.on_status(0, "a", "done")
    before, since = view.path.stat().st_mtime_ns, view.view["sites"]["a"]["since"]
    view.on_site(0, "a")  # the server accepts what the engine has told of
    assert (view.path.stat().st_mtime_ns, view.view["sites"]["a"]["since"]) == (before, since)


def test_only_the_last_lines_are_kept(live: LiveView) -> None:
    for number in range(20):
        live.on_message(str(number))
    assert live.view["lines"] == [str(number) for number in range(12, 20)]
    assert live.view["said"] == 20


def test_the_record_of_an_older_run(folder: RunFolder) -> None:
    folder.recipe_file.write_text('federation = "/data/tiny"\nmethod = "moon"\n[training]\nrounds = 4\n')
    assert recorded(folder)["rounds"] == 4
    folder.add_event(event(0))
    folder.add_event(event(1, refused={"b": "failed: disk"}, best_round=0))
    view = recorded(folder)
    wanted = {"method": "moon", "federation": "tiny", "engine": "inprocess", "round": 2, "rounds": 4, "best_round": 1}
    assert view.items() >= wanted.items()
    assert view["sites"]["a"] == {
        "status": "done", "since": None, "loss": 0.75, "dice": 0.5, "bytes_up": 20, "bytes_down": 40,
    }  # fmt: skip
    assert view["sites"]["b"].items() >= {"status": "failed", "reason": "failed: disk"}.items()
    assert not view["finished"]
    assert "no live.json" in view["note"]
    summary = {"method": "moon", "federation": "renamed", "engine": "inprocess", "rounds": 4, "average": {"dice": 0.7}}
    folder.summary_file.write_text(json.dumps(summary))
    view = recorded(folder)
    assert (view["finished"], view["average"], view["federation"]) == (True, {"dice": 0.7}, "renamed")


def test_a_run_that_finds_nothing_is_marked_until_it_finds_something(live: LiveView) -> None:
    live.on_round(event(0))
    assert live.view["stuck"] == 0, "a record of an earlier version says nothing of it"
    live.on_round(event(1, stuck=5))
    assert live.view["stuck"] == 5
    live.on_round(event(2, stuck=0))
    assert live.view["stuck"] == 0


def test_a_site_that_finds_nothing_is_marked_until_it_finds_something(folder: RunFolder, live: LiveView) -> None:
    live.on_round(event(0, stuck_sites={"a": 5}))
    assert {name: site.get("stuck") for name, site in live.view["sites"].items()} == {"a": 5, "b": None}
    folder.add_event(event(0, stuck_sites={"a": 5}))
    live.on_start("all", ["a", "b"], 3, 1)
    assert live.view["sites"]["a"]["stuck"] == 5, "a resumed run says the same"
    live.on_round(event(1))
    assert "stuck" not in live.view["sites"]["a"]
