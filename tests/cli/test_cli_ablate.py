from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import polyclinic.api
from support import call

FAST = ["--set", "training.rounds=1", "--set", "training.local_epochs=1", "--seeds", "1", "--jobs", "1"]


def test_the_table_is_printed_and_as_json_it_is_alone_on_stdout(tiny_recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("ablate", tiny_recipe_file, "--method", "fedprox", "--out", out, *FAST)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].split()[:2] == ["method", "proximal"]
    assert done.out.splitlines()[-1] == f"Table: {out / 'ablation.md'}, .csv and .tex; run folders: {out}"
    done = call("ablate", tiny_recipe_file, "--method", "fedprox", "--out", out, "--json", *FAST)
    facts = json.loads(done.out)
    assert [row["method"] for row in facts["rows"]] == ["fedavg", "fedprox"]
    assert facts["rows"][0]["average"]["mean"] == pytest.approx(
        json.loads((out / "fedavg-seed0" / "summary.json").read_text())["average"]["dice"]
    )


def test_options_reach_the_plan_and_ctrl_c_says_how_to_go_on(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def interrupted(*arguments: Any) -> None:
        calls.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(polyclinic.api, "compare_ablation", interrupted)
    done = call(
        "ablate", tiny_recipe_file, "--set", "method=pathfl", "--components", "afa,cse", "--out", tmp_path / "out",
        "--seeds", "4,9", "--metric", "hd95", "-j", "2",
    )  # fmt: skip
    ((plan, metric, jobs, _),) = calls
    assert (plan.method, plan.components, metric, jobs) == ("pathfl", ("afa", "cse"), "hd95", 2)
    assert plan.grid.seeds == (4, 9)
    assert done.code == 130
    assert "Interrupted. Finished runs are kept; go on with:" in done.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "fedavg"), "nothing of it can be left out"),
        (("--method", "pathfl", "--components", "csee"), "'csee' cannot be left out of pathfl, did you mean 'cse'?"),
        (("--method", "pathfl", "--metric", "hd59"), "--metric hd59: not measured"),
        (("--method", "pathfl", "--seeds", "no"), "--seeds no: expected a number"),
    ],
)
def test_wrong_input_stops_before_anything_runs(
    tiny_recipe_file: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = call("ablate", tiny_recipe_file, "--out", tmp_path / "out", *arguments)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert not (tmp_path / "out").exists()
