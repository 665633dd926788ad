from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyclinic.report.optimiser_steps import steps_line, steps_of


def write_grid(folder: Path, steps: dict[str, list[Any]]) -> Path:
    """A grid with a run for each number of steps; those of earlier versions have none, and None is not finished."""
    folder.mkdir()
    runs = [
        {"method": method, "seed": seed, "folder": f"{method}-seed{seed}"}
        for method, found in steps.items()
        for seed in range(len(found))
    ]
    (folder / "grid.json").write_text(json.dumps({"methods": list(steps), "runs": runs}))
    for entry in runs:
        count = steps[entry["method"]][entry["seed"]]
        if count is not None:
            (folder / entry["folder"]).mkdir()
            summary = {} if count == "unknown" else {"steps": count}
            (folder / entry["folder"] / "summary.json").write_text(json.dumps(summary))
    return folder


def test_the_line_names_each_method_where_they_differ(tmp_path: Path) -> None:
    same = write_grid(tmp_path / "same", {"central": [240, 240], "fedavg": [240, None]})
    assert steps_line(same) == "Optimiser steps of all sites together: 240 for every method."
    other = write_grid(tmp_path / "other", {"central": [60, 62], "fedavg": [240], "fedbn": ["unknown"]})
    assert steps_of(other) == {"central": 61, "fedavg": 240, "fedbn": None}
    assert steps_line(other) == "Optimiser steps of all sites together: central 61, fedavg 240."


def test_runs_of_earlier_versions_say_nothing(tmp_path: Path) -> None:
    assert steps_line(write_grid(tmp_path / "grid", {"fedavg": ["unknown"]})) == ""
