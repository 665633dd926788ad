from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import polyclinic.api
from support import call


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ("data.labelled", "expected a key and its values, such as --vary data.labelled=5,10,20"),
        ("data.labelled=", "expected a key and its values"),
        ("=1,2", "expected a key and its values"),
        ("seed=1,2", "give methods with --methods and seeds with --seeds"),
        ("data.labeled=1,2", "unknown key 'data.labeled', did you mean 'labelled'"),
        ("training.lr=0.1,0.1", "a value is there twice; give each once"),
        ("training.lr=0.1,0.10", "'0.1' and '0.10' are the same recipe"),
        ("data.labelled=1,0", "data.labelled"),
    ],
)
def test_a_wrong_key_or_value_stops_before_anything_runs(
    tiny_recipe_file: Path, tmp_path: Path, vary: str, words: str
) -> None:
    done = call("study", tiny_recipe_file, "--vary", vary, "--methods", "fedavg", "--out", tmp_path / "out")
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        (["training.lr=0.1,0.2", "data.labelled=1,2", "training.rounds=1,2"], "one or two keys, not 3; fix the others"),
        (["training.lr=0.1,0.2", "training.lr=0.3"], "training.lr is there twice; give all of its values at once"),
        (["training.lr=0.1,0.10", "data.labelled=1,2"], "'0.1, 1' and '0.10, 1' are the same recipe"),
    ],
)
def test_keys_that_do_not_go_together_get_a_sentence(
    tiny_recipe_file: Path, tmp_path: Path, vary: list[str], words: str
) -> None:
    keys = [word for text in vary for word in ("--vary", text)]
    done = call("study", tiny_recipe_file, *keys, "--methods", "fedavg", "--out", tmp_path / "out")
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "out").exists()


def test_seeds_methods_and_jobs_reach_the_study_and_ctrl_c_says_how_to_go_on(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def interrupted(*arguments: Any) -> None:
        calls.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(polyclinic.api, "compare_study", interrupted)
    methods = "fedavg, moon(mu=1, temperature=0.2)"
    done = call(
        "study", tiny_recipe_file, "--vary", "data.labelled=1,2", "--methods", methods, "--out", tmp_path / "out",
        "--seeds", "4,9", "--metric", "hd95", "-j", "2",
    )  # fmt: skip
    ((plan, metric, jobs, _),) = calls
    assert (plan.key, list(plan.grids), metric, jobs) == ("data.labelled", ["1", "2"], "hd95", 2)
    for grid in plan.grids.values():
        assert grid.methods == ("fedavg", "moon(mu=1,temperature=0.2)")
        assert grid.seeds == (4, 9)
    assert done.code == 130
    assert "Interrupted. Finished runs are kept; go on with:" in done.err


def test_a_study_without_a_key_shows_the_usage(tiny_recipe_file: Path, tmp_path: Path) -> None:
    done = call("study", tiny_recipe_file, "--methods", "fedavg", "--out", tmp_path / "out")
    assert done.code == 2
    assert "--vary" in done.err
