from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.report.page.live_page import FolderPage, ServerPage, watched_folder
from polyclinic.runs.live_source import LiveSnapshot, LostError
from report_support import round_event, write_grid, write_run


def test_only_what_has_changed_is_sent(tmp_path: Path) -> None:
    run, asked = write_run(tmp_path, finished=False), list[Path]()

    def declared(folder: Path) -> dict[str, Any]:
        asked.append(folder)
        return {}

    watched = watched_folder(run, declared)
    page = watched.page()
    write_json(run / "live.json", {"sites": {}, "round": 1, "rounds": 3, "method": "fedavg", "updated": 1e12})
    news = watched.news(page.version)
    assert news.keys() == {"version", "live", "over"}
    assert "round 1 of 3 done" in news["live"]
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(round_event(0, 0, 1)) + "\n")
    news = watched.news(page.version)
    assert news["version"] != page.version
    assert len(news["data"]["charts"]["curve-0"]["data"][0]["x"]) == 2
    assert not news["over"]
    write_run(run)
    news = watched.news(news["version"])
    assert news["over"]
    assert "63.00" in news["sections"]["scores"]
    assert asked == [run], "what is declared is found out once"
    json.dumps(news, allow_nan=False)


def test_a_run_that_stopped_is_over_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path, finished=False)
    write_json(run / "live.json", {"sites": {}, "stopped": "interrupted"})
    watched = FolderPage(run)
    assert watched.news("")["over"]
    assert watched.stopped == "interrupted"


def test_a_grid_is_over_when_all_of_its_runs_are(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg", "fedbn"), seeds=(0,), missing=[("fedbn", 0)])
    watched = FolderPage(folder)
    assert not watched.news("")["over"]
    write_grid(folder, ("fedavg", "fedbn"), seeds=(0,))
    assert watched.news("")["over"]


def test_a_folder_that_is_no_run_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match="holds no run"):
        watched_folder(tmp_path, None)


def test_a_server_gives_its_live_view_and_while_it_is_silent_the_last_one() -> None:
    view = {
        "method": "fedavg",
        "federation": "far",
        "engine": "flower",
        "sites": {},
        "round": 1,
        "rounds": 2,
        "updated": 9.0,
    }

    answers = [LiveSnapshot({**view, "round": 2}, 10.0), LostError("far:1: connection refused.")]

    class Far:
        def read(self) -> LiveSnapshot:
            answer = answers.pop(0)
            if isinstance(answer, LostError):
                raise answer
            return answer

    watched = ServerPage(Far(), LiveSnapshot(view, 10.0))
    assert watched.page().title == "fedavg on far, engine flower"
    assert "round 1 of 2 done" in watched.page().sections["opening"]
    assert "round 2 of 2 done" in watched.news("live")["live"]
    silent = watched.news("live")
    assert "round 2 of 2 done" in silent["live"]
    assert "connection refused" in silent["live"]
    assert not silent["over"]
    answers += [LostError("far:1: connection refused.")] * 4
    last = [watched.news("live") for _ in range(4)][-1]
    assert last["over"], "after the last round a silent server has most likely finished"
    assert "its run folder has the result" in last["live"]
