from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.report.profile_table import print_profile


def shown(folder: Path, capsys: pytest.CaptureFixture[str], profile: dict[str, Any]) -> str:
    (folder / "profile.json").write_text(json.dumps(profile))
    print_profile(folder)
    return capsys.readouterr().out


def phase(name: str, seconds: float, beside: bool = False) -> dict[str, Any]:
    return {"phase": name, "seconds": seconds, "count": 3, "beside": beside}


PROFILE: dict[str, Any] = {
    "seconds": 100.0, "other": 1.0,
    "phases": [phase("backward", 60.0), phase("forward", 38.5), phase("plan", 0.3), phase("writing", 0.2),
               phase("save state", 12.0, True)],
    "sites": {"north": {"backward": 50.0, "forward": 30.0}, "south": {"backward": 10.0}},
    "components": {"cdpa": {"loss": 2.0, "combine": 1.0}, "weighted_mean": {}},
    "rounds": {"1": 99.0}, "processes": 1, "spans": 9, "dropped": 0,
}  # fmt: skip


def test_phases_sites_and_components(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in shown(tmp_path, capsys, PROFILE).splitlines() if line.strip()]
    assert lines[:8] == [
        ["phase", "seconds", "share", "times"],
        ["backward", "60.00", "60.0%", "3"],
        ["forward", "38.50", "38.5%", "3"],
        ["other", "1.00", "1.0%"],
        ["2", "more", "0.50", "0.5%"],
        ["in", "all", "100.00"],
        ["beside:", "save", "state", "12.00", "3"],
        ["site", "seconds", "most", "of", "it"],
    ]
    assert lines[8] == ["north", "80.00", "backward", "50.00,", "forward", "30.00"]
    assert ["cdpa", "3.00", "loss", "2.00,", "combine", "1.00"] in lines
    assert ["weighted_mean", "0.00"] in lines
    assert "ui.perfetto.dev" in lines[-1][-1]


def test_limits_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = {f"site{number:02d}": {"step": float(number)} for number in range(30)}
    text = shown(tmp_path, capsys, {**PROFILE, "sites": sites, "dropped": 7, "processes": 3})
    assert "and 20 more" in text
    assert "site29" in text
    assert "site19" not in text
    assert "7 spans are in the tables and not in the trace" in text
    assert "beside: in other threads and processes" in text


def test_without_a_file_there_is_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_profile(tmp_path)
    assert "finished before" in capsys.readouterr().out
