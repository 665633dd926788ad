from __future__ import annotations

import json
from pathlib import Path

from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.problems import further_words, problem_chart, problem_rows, problem_words, problems_of
from polyclinic.report.page.results import read_results
from report_support import round_event, write_grid


def test_failures_are_listed_by_round_and_site_with_their_reason(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg", "fedbn"), seeds=(0,))
    refused = [{"south": "is away"}, {"south": "is away"}, {"north": "update refused\nnot finite"}]
    events = [
        round_event(1, 0, n, refused=why, warnings=["little quorum"] if n else []) for n, why in enumerate(refused)
    ]
    (folder / "m1-seed0" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    summary = folder / "m1-seed0" / "summary.json"
    write_json(summary, read_json(summary) | {"untested": {"south": "no test images"}})
    (grid,) = read_results(folder).grids
    found = problems_of(grid)
    assert problem_rows(found) == (
        [["fedbn seed 0", "1 to 2", "south", "is away"], ["fedbn seed 0", "3", "north", "update refused not finite"]],
        "",
    )
    assert problem_words(grid, found) == "3 updates did not count, in 6 rounds of 2 runs."
    assert "fedbn seed 0: south was not tested: no test images" in further_words(grid)
    assert "fedbn seed 0, round 2: little quorum" in further_words(grid)
    chart = problem_chart(grid, found)
    assert chart is not None
    assert [trace["x"] for trace in chart.data] == [[], [1, 2, 3]]


def test_a_run_that_stopped_says_why_and_one_without_problems_says_so(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg",), seeds=(0,), missing=[("fedavg", 0)])
    (grid,) = read_results(folder).grids
    assert (problem_chart(grid, []), further_words(grid)) == (None, [])
    assert problem_words(grid, []) == "No site failed and no update was refused, in 1 round of 1 run."
    write_json(folder / "m0-seed0" / "live.json", {"stopped": "no space is left"})
    (grid,) = read_results(folder).grids
    assert further_words(grid) == ["fedavg seed 0 stopped: no space is left"]


def test_a_long_list_is_cut_with_a_sentence(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg",), seeds=(0,))
    events = [round_event(0, 0, n, refused={"south": f"reason {n}"}) for n in range(230)]
    (folder / "m0-seed0" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    rows, left = problem_rows(problems_of(read_results(folder).grids[0]))
    assert (len(rows), left) == (200, "30 more lines are in the events.jsonl of the runs.")
