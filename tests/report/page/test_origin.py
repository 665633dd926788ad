from __future__ import annotations

from pathlib import Path

from polyclinic.core.files import read_json, write_json
from polyclinic.report.page.origin import commands, plugins, recipe_text, splits, versions
from polyclinic.report.page.results import read_results
from report_support import write_grid, write_run, write_study


def test_the_commands_that_make_it_again(tmp_path: Path) -> None:
    run = commands(read_results(write_run(tmp_path / "first")))
    assert run == ["polyclinic run recipe.toml --out first-again", "polyclinic report first-again"]
    grid = write_grid(tmp_path / "grid", ("fedavg", "a(b='c d')"), seeds=(7,))
    assert commands(read_results(grid))[0] == (
        """polyclinic compare recipe.toml --methods 'fedavg,a(b='"'"'c d'"'"')' --seeds 7, --out grid-again"""
    )
    study = write_study(tmp_path / "study")
    assert commands(read_results(study))[0].startswith(
        "polyclinic study recipe.toml --vary data.labelled=5,10 --methods"
    )
    plan = read_json(study / "study.json") | {"axes": {"a.b": ["1", "2"], "c": ["x"]}}
    write_json(study / "study.json", plan)
    assert "--vary a.b=1,2 --vary c=x " in commands(read_results(study))[0]
    rows = [{"method": "fedavg", "components": []}]
    write_json(grid / "ablation.json", {"method": "pathfl", "components": ["cse", "afa"], "rows": rows})
    assert "ablate recipe.toml --method pathfl --components cse,afa --seeds 7, " in commands(read_results(grid))[0]


def test_recipe_versions_and_splits_are_those_of_the_runs(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, ("fedavg",))
    write_json(folder / "m0-seed1" / "versions.json", {"seed": 1, "python": "3.12.1", "torch": "2.13.0"})
    results = read_results(folder)
    assert versions(results) == [("python", "3.11.7 or 3.12.1"), ("torch", "2.13.0")]
    assert recipe_text(results) == (folder / "m0-seed0" / "recipe.toml").read_text()
    assert [name for name, _ in splits(results)] == ["seed 0", "seed 1"]


def test_plugins_of_the_recipe_are_named_without_the_folders_they_were_in(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    assert plugins(read_results(folder)) == []
    recipe = folder / "recipe.toml"
    recipe.write_text('plugins = ["/home/me/my_idea.py"]\n' + recipe.read_text())
    assert plugins(read_results(folder)) == ["my_idea.py"]
    assert commands(read_results(folder))[1].endswith("-again --plugins")
