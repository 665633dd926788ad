from __future__ import annotations

import re
from pathlib import Path

from polyclinic.runs.server_log import ServerLog


def test_a_readable_line_with_its_time_for_everything(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "server.log")
    log.on_start("all", ("north", "south"), 3, 1)
    log.on_refusal(-1, "south", "is not connected", "trace")
    event = {
        "round": 1, "samples": {"north": 3}, "sites": ["north", "south"],
        "validation": {"dice": 0.5}, "seconds": {"training": 2.0, "validation": 0.5}, "warnings": ["it finds nothing"],
    }  # fmt: skip
    log.on_round(event)
    log.on_round({**event, "round": 2, "validation": {"dice": None}, "warnings": []})
    log.on_message("waiting for south")
    log.on_result({"average": {"dice": 0.25, "hd95": None}})
    stamp = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
    lines = (tmp_path / "server.log").read_text().splitlines()
    assert all(stamp.match(line) for line in lines)
    assert [stamp.sub("", line) for line in lines] == [
        "[all] 2 sites (north, south), 1 of 3 rounds done",
        "before the first round: south is not connected",
        "round 2/3: 1 of 2 sites, validation Dice 0.5000, 2.5 s",
        "round 2: it finds nothing",
        "round 3/3: 1 of 2 sites, 2.5 s",
        "waiting for south",
        "finished: average over sites: dice 0.2500",
    ]
    ServerLog(tmp_path / "server.log").on_message("again")
    assert len((tmp_path / "server.log").read_text().splitlines()) == 8, "a log goes on"
