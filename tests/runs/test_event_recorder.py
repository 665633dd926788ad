from __future__ import annotations

from pathlib import Path

from polyclinic.runs.event_recorder import EventRecorder
from polyclinic.runs.folder import RunFolder


def test_rounds_and_problems_are_recorded_and_a_resumed_part_drops_what_it_repeats(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = EventRecorder(folder)
    recorder.on_refusal(-1, "south", "will not take part", "")
    recorder.on_start("fold-1", ["north"], 2, 0)
    for number in range(2):
        recorder.on_round({"round": number})
    recorder.on_refusal(1, "south", "failed", "Traceback")
    recorder.on_start("fold-2", ["north"], 2, 0)
    recorder.on_round({"round": 0})
    assert folder.log_file.read_text().splitlines() == [
        "before the first round, site south: will not take part",
        "[fold-1] round 2, site south: failed",
        "Traceback",
    ]
    EventRecorder(folder).on_start("fold-1", ["north"], 2, 1)
    assert folder.events() == [{"part": "fold-1", "round": 0}, {"part": "fold-2", "round": 0}]


def test_rounds_that_were_taken_back_are_no_longer_in_the_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recorder = EventRecorder(folder)
    recorder.on_start("all", ["north"], 3, 0)
    for number in (0, 1):
        recorder.on_round({"round": number})
    recorder.on_rollback(1)
    recorder.on_round({"round": 1, "refused": {"west": "left out"}})
    assert [(event["round"], "refused" in event) for event in folder.events()] == [(0, False), (1, True)]
