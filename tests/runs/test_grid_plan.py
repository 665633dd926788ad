"""The plan of a grid: methods, seeds, folders, and the recipe of each run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.files import changed_keys, load_recipe
from polyclinic.runs.grid_plan import folder_name, parse_seeds, plan_grid, split_expressions


@pytest.mark.parametrize(
    ("text", "expected"), [("3", (5, 6, 7)), ("0,7,42", (0, 7, 42)), ("7,", (7,)), (" 1, 2 ", (1, 2))]
)
def test_seeds(text: str, expected: tuple[int, ...]) -> None:
    assert parse_seeds(text, 5) == expected


def test_expressions_are_split_between_methods_only() -> None:
    assert split_expressions("a, b(x=1,y=2) ,c+d(z=[1,2]),") == ("a", "b(x=1,y=2)", "c+d(z=[1,2])")


def test_different_expressions_have_different_folders() -> None:
    names = [folder_name(text) for text in ("x(a=[1,2])", "x(a=[12])", "x(a=12)", "x-a", "x+a", "x(a='/../b')")]
    assert len(set(names)) == len(names)
    assert all("/" not in name for name in names)


@pytest.mark.parametrize(
    ("methods", "seeds", "message"),
    [
        ((), (0,), "--methods: name at least one method"),
        (("fedavg", "fedbn", "fedavg"), (0,), "'fedavg' is there twice"),
        (("fedavg+proximal", "fedavg + proximal"), (0,), r"'fedavg\+proximal' is there twice"),
        (("fedavg",), (), "--seeds: expected at least one seed"),
        (("fedavg",), (1, 1), "none twice"),
        (("fedavg",), (-1,), "none below 0"),
    ],
)
def test_wrong_plans_get_a_sentence(
    methods: tuple[str, ...], seeds: tuple[int, ...], message: str, tiny_recipe_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PolyclinicError, match=message):
        plan_grid(load_recipe(tiny_recipe_file), methods, seeds, tmp_path)


@pytest.mark.parametrize("text", ["three", "1,x", "1.5"])
def test_seeds_that_are_no_numbers_get_a_sentence(text: str) -> None:
    with pytest.raises(PolyclinicError, match="expected a number such as 3, or a list"):
        parse_seeds(text, 0)


def test_a_seed_at_a_time_in_the_order_of_the_methods(tiny_recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(tiny_recipe_file)
    plan = plan_grid(recipe, ("fedbn", "fedavg + proximal"), (4, 1), tmp_path)
    assert [(cell.method, cell.seed, cell.folder.name) for cell in plan.cells] == [
        ("fedbn", 4, "fedbn-seed4"),
        ("fedavg+proximal", 4, "fedavg+proximal-seed4"),
        ("fedbn", 1, "fedbn-seed1"),
        ("fedavg+proximal", 1, "fedavg+proximal-seed1"),
    ]
    assert changed_keys(recipe, plan.recipe_of(plan.cells[1])) == ["method", "seed"]
    plan.save()
    assert [run["folder"] for run in json.loads((tmp_path / "grid.json").read_text())["runs"]] == [
        cell.folder.name for cell in plan.cells
    ]
