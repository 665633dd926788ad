"""What the gate tells the coordinator: each thing once a minute, and never much."""

from __future__ import annotations

import json
from pathlib import Path

from polyclinic.deploy.coordinator import gate_notices as module
from polyclinic.deploy.coordinator.event_relay import Follower
from polyclinic.deploy.coordinator.gate_notices import Notices
from polyclinic.federation.observer import Observer


class Heard(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_message(self, text: str) -> None:
        self.texts.append(text)


def notices(path: Path, seconds: list[float]) -> Notices:
    made = Notices(path)
    for limiter in (made._sites, made._strangers, made._all_strangers):
        limiter.clock = lambda: seconds[0]
    return made


def test_a_site_gets_a_line_a_minute_whatever_strangers_do(tmp_path: Path) -> None:
    seconds = [0.0]
    told = notices(tmp_path / "gate.jsonl", seconds)
    for number in range(5000):
        told.about_stranger(f"key {number}", "a stranger")
    for _ in range(5):
        told.about_site("north", "north's clock")
    lines = [json.loads(line) for line in (tmp_path / "gate.jsonl").read_text().splitlines()]
    assert lines == [["on_message", "a stranger"]] * 10 + [["on_message", "north's clock"]]
    seconds[0] = 61.0
    told.about_site("north", "north's clock, again")
    told.about_stranger("key 1", "a stranger, again")
    assert len((tmp_path / "gate.jsonl").read_text().splitlines()) == 13


def test_the_file_begins_anew_when_it_is_full_and_its_reader_follows(tmp_path: Path, monkeypatch: object) -> None:
    seconds = [0.0]
    told = notices(tmp_path / "gate.jsonl", seconds)
    heard = Heard()
    follower = Follower(tmp_path / "gate.jsonl", heard)
    monkeypatch.setattr(module, "_LARGEST_FILE", 100)  # type: ignore[attr-defined]
    for number in range(20):
        seconds[0] += 61
        told.about_site("north", f"line {number}")
        follower.look()
    assert heard.texts == [f"line {number}" for number in range(20)]
    assert (tmp_path / "gate.jsonl").stat().st_size < 200


def test_a_folder_that_cannot_be_written_to_stops_nobody(tmp_path: Path) -> None:
    Notices(tmp_path / "missing" / "gate.jsonl").about_site("north", "north's clock")
    Notices(None).about_site("north", "north's clock")
