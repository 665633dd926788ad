"""What a run prints at its end."""

from __future__ import annotations

from typing import Any

import pytest

from polyclinic.report.run_table import print_run


def test_a_run_without_any_tested_site_still_prints(capsys: pytest.CaptureFixture[str]) -> None:
    summary = {
        "method": "local", "federation": "f", "seed": 0, "sites": {}, "average": {}, "distances": "pixels",
        "bytes_up": 0, "bytes_down": 1_500_000, "seconds": 1.0, "images_leave": False,
    }  # fmt: skip
    print_run(summary)
    assert "0 B left the sites, 1.5 MB came in, 1 s" in capsys.readouterr().out


def test_a_run_shows_deviations_of_repeats_and_tests_after_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    def table(dice: float) -> dict[str, Any]:
        return {"sites": {"a": {"dice": dice, "hd95": None}}, "average": {"dice": dice, "hd95": 3.0}}

    summary = {
        "method": "m", "federation": "f", "seed": 0, "distances": "mm", "bytes_up": 0, "bytes_down": 0, "seconds": 1.0,
        "images_leave": False, **table(0.8), "deviation": table(0.02), "repeats": {"repeat-1": {}, "repeat-2": {}},
        "at_rounds": {"40": {**table(0.5), "deviation": table(0.03)}, "80": table(0.7)},
    }  # fmt: skip
    print_run(summary)
    out = capsys.readouterr().out
    assert "mean ± standard deviation of 2 splits, overlaps in %, distances in mm" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["a", "80.00", "±", "2.00", "-"] in lines
    assert ["40", "50.00", "±", "3.00", "3.00", "±", "3.00"] in lines
    assert ["80", "70.00", "3.00"] in lines


def test_names_with_brackets_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    name = "ward[/red]"
    print_run(
        {
            "method": "m",
            "federation": "f",
            "seed": 0,
            "distances": "mm",
            "bytes_up": 0,
            "bytes_down": 0,
            "seconds": 1.0,
            "images_leave": False,
            "sites": {name: {"dice": 0.5}},
            "average": {"dice": 0.5},
            "transfer": {f"without-{name}": {name: {name: 0.5}}},
            "shared_up": {"[cdpa]": {name: {"bytes": 8}}},
        }
    )
    out = capsys.readouterr().out
    assert out.count(name) == 4
    assert "[cdpa]: 8 B from a site in a round" in out
