from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

import polyclinic.api
from support import call


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_compare_prints_the_table_it_writes(tiny_recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "grid"
    arguments = ["compare", tiny_recipe_file, "--methods", "fedavg, fedavg+proximal(mu=0.5)", "--out", out, "-j", 1]
    done = call(*arguments, "--seeds", "3,5", "--set", "training.rounds=1")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines()[:-1])) <= 80
    values = {
        method: [
            json.loads((out / f"{method}-seed{seed}" / "summary.json").read_text())["average"]["dice"]
            for seed in (3, 5)
        ]
        for method in ("fedavg", "fedavg+proximal(mu=0.5)")
    }
    for numbers in values.values():
        assert f"{100 * mean(numbers):.2f} ± {100 * stdev(numbers):.2f}" in done.out
    difference = mean(values["fedavg+proximal(mu=0.5)"]) - mean(values["fedavg"])
    assert f" {100 * difference:+.2f} " in done.out
    assert f"| {100 * difference:+.2f} |" in (out / "table.md").read_text()
    assert "dice in %, mean ± standard deviation over 2 seeds." in done.out
    end = f"Tables (.md, .csv, .tex) and statistics (.csv, .json) are in {out}, beside the run folders."
    assert done.out.splitlines()[-1] == end
    words = json.loads((out / "statistics.json").read_text())["metrics"]["dice"]["methods"]
    sentence = words["fedavg+proximal(mu=0.5)"]["sentence"]
    assert sentence.startswith(f"fedavg+proximal(mu=0.5) against fedavg: {100 * difference:+.2f} [")
    assert sentence in " ".join(done.out.split())
    assert f"- {sentence}" in (out / "table.md").read_text()
    assert done.err.splitlines()[:2] == ["4 runs to do, one after another", "fedavg seed 3: started"]
    assert "fedavg seed 3: finished in" in done.err

    again = call(*arguments, "--seeds", "3,5", "--set", "training.rounds=1", "--metric", "hd95")
    assert again.err == "", "nothing is trained again"
    assert "hd95 mean distance" in again.out

    reference = "fedavg+proximal(mu=0.5)"
    plain = call(*arguments, "--seeds", "3,5", "--set", "training.rounds=1", "--json", "--reference", reference)
    found = json.loads(plain.out)
    assert found["tables"]["dice"]["reference"] == found["statistics"]["reference"] == reference
    assert found["tables"]["dice"]["methods"]["fedavg"]["average"]["seeds"] == values["fedavg"]
    assert found["statistics"]["metrics"]["dice"]["methods"]["fedavg"]["difference"] == pytest.approx(-difference)
    assert found["words"][0].startswith(f"fedavg against {reference}: ")
    assert list(found["tables"]) == list(found["statistics"]["metrics"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "fedavg,fedbn,fedavg"), "--methods: 'fedavg' is there twice"),
        (("--methods", "fedavg,fedbnn"), "'fedbnn' is not a method, did you mean 'fedbn'?"),
        (("--methods", ","), "--methods: name at least one method"),
        (("--methods", "fedavg", "--metric", "dicee"), "--metric dicee: not measured; evaluation.metrics holds dice,"),
        (
            ("--methods", "fedavg,fedbn", "--reference", "fedbnn"),
            "--reference fedbnn: not among the methods, did you mean",
        ),
        (("--methods", "fedavg", "--seeds", "many"), "--seeds many: expected a number such as 3"),
        (("--methods", "fedavg", "--seeds", "0"), "--seeds: expected at least one seed"),
    ],
)
def test_wrong_grids_stop_at_once(
    arguments: tuple[str, ...], words: str, tiny_recipe_file: Path, tmp_path: Path
) -> None:
    done = call("compare", tiny_recipe_file, *arguments, "--out", tmp_path / "grid")
    assert done.code == 2
    assert done.err.startswith(f"error: {words}")
    assert not (tmp_path / "grid").exists()


def test_an_interruption_prints_the_same_command(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(polyclinic.api, "compare_grid", interrupted)
    done = call("compare", tiny_recipe_file, "--methods", "fedavg", "--out", tmp_path)
    assert done.code == 130
    assert done.err.splitlines()[-1] == f"  polyclinic compare {tiny_recipe_file} --methods fedavg --out {tmp_path}"
