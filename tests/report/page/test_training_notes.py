from __future__ import annotations

from pathlib import Path

from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.results import read_results
from polyclinic.report.page.training_notes import steps_note, stuck_notice
from report_support import write_grid, write_run


def test_a_run_speaks_of_itself_and_a_comparison_names_its_runs(tmp_path: Path) -> None:
    stuck = {"stuck": {"all": {"longest": 9, "at_end": 0}}}
    (run,) = read_results(write_run(tmp_path / "run", steps=40, **stuck)).grids
    assert stuck_notice(run).startswith("Stuck at background: 9 validated rounds;")
    assert steps_note(run) == "Optimiser steps of all sites together: fedavg 40."
    grid = write_grid(tmp_path / "grid", ("fedavg", "fedbn"), (0, 1), missing=[("fedbn", 1)])
    path = grid / "m1-seed0" / "summary.json"
    write_json(path, read_json(path) | stuck | {"steps": 50})
    (found,) = read_results(grid).grids
    assert stuck_notice(found).startswith("Stuck at background: fedbn seed 0 (9 validated rounds);")
    assert steps_note(found) == "Optimiser steps of all sites together: fedbn 50."


def test_a_site_that_was_stuck_is_named(tmp_path: Path) -> None:
    parts = {"all": {"longest": 0, "at_end": 0, "sites": {"north": {"longest": 5, "at_end": 5}}}}
    (run,) = read_results(write_run(tmp_path / "run", stuck=parts)).grids
    assert stuck_notice(run).startswith("Stuck at background at single sites: north (5 validated rounds, to the end);")


def test_nothing_is_said_where_nothing_is_known(tmp_path: Path) -> None:
    (grid,) = read_results(write_grid(tmp_path, missing=[("fedbn", 0)])).grids
    assert (stuck_notice(grid), steps_note(grid)) == ("", "")
