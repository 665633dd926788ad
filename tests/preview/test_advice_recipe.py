"""Advice as a recipe that runs, and as commands that a shell takes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from advice_support import NOTHING, VESSELS, VOLUMES
from polyclinic.preview.advice import Advice, advise
from polyclinic.preview.advice_recipe import (
    about_runs,
    advised_recipe,
    compare_command,
    number_of_runs,
    write_command,
)
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe


@pytest.fixture
def advice() -> Advice:
    return advise(VESSELS, NOTHING)


def read(text: str, folder: Path) -> Recipe:
    path = folder / "advised.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path)


def test_the_recipe_has_the_advised_settings_and_the_question(tiny_federation: Path, tmp_path: Path) -> None:
    asked = advise(replace(VESSELS, polarity="mixed"), NOTHING, unseen=True, labelled=3)
    recipe = read(advised_recipe(asked, str(tiny_federation)), tmp_path)
    assert (recipe.federation, recipe.method) == (str(tiny_federation.resolve()), "fl_lower")
    assert (recipe.data.patch, recipe.data.foreground, recipe.data.intensity) == ((96, 96), 0.5, "site")
    assert (recipe.data.labelled, recipe.protocol.kind) == (3, "leave-one-site-out")
    assert recipe.training.steps_per_epoch == 20, "a fair number of steps with few labels"


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash", "täglich"])
def test_any_folder_name_is_written_so_that_it_is_read_again(advice: Advice, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    assert read(advised_recipe(advice, str(folder)), tmp_path).federation == str(folder.resolve())


def test_an_embedded_federation_keeps_its_name(advice: Advice) -> None:
    assert 'federation = "demo:nuclei"' in advised_recipe(advice, "demo:nuclei")


@pytest.mark.parametrize(
    ("unseen", "labelled", "options"),
    [(False, None, []), (True, None, ["--unseen"]), (True, 6, ["--unseen", "--labelled", "6"])],
)
def test_the_way_to_the_recipe_asks_the_same_question(unseen: bool, labelled: int | None, options: list[str]) -> None:
    command = write_command(advise(VESSELS, NOTHING, unseen, labelled), "my clinics")
    assert shlex.split(command) == ["polyclinic", "advise", "my clinics", *options, "--write", "recipe.toml"]


def test_the_comparison_is_one_that_a_shell_takes(advice: Advice) -> None:
    command = compare_command(advice, "it's mine.toml")
    words = shlex.split(command)
    assert words[:4] == ["polyclinic", "compare", "it's mine.toml", "--methods"]
    assert words[4].split(",") == list(advice.compared)
    assert "'fedavg,fedavg(weighting=uniform)," in command, "a shell would read the brackets"


def test_it_says_how_many_runs_that_makes(advice: Advice) -> None:
    assert number_of_runs(advice) == 3 * len(advice.compared) == 18
    assert about_runs(advice).startswith("18 runs (6 methods, 3 seeds) of 20 rounds. ")
    assert "training.rounds" in about_runs(advice), "long enough comes before any method"
    unseen = advise(VOLUMES, NOTHING, unseen=True)
    assert "9 runs (3 methods, 3 seeds) of 3 trainings each, with another site left out, of 20" in about_runs(unseen)
