"""A recipe as a site runs it: the site's own settings in it, and what is built for it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flower_support import png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.opened_recipe import OpenedRecipe
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.federation.site_policy import Policy
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import recipe_text
from polyclinic.runs.plan import plan_run


def open_recipe(recipe: Recipe, home: Path, federation: Path, log: list[str] | None = None) -> OpenedRecipe:
    home.mkdir(exist_ok=True)
    settings = SiteSettings("north", str(federation), str(home), None, device="cpu")
    return OpenedRecipe.open(
        recipe_text(recipe), Policy(minimum_images=1), settings, (log if log is not None else []).append, 1
    )


def test_it_has_the_folder_of_the_site_and_the_units_of_the_recipe(tiny_federation: Path, tmp_path: Path) -> None:
    asked = png_recipe("/folder/of/the/server")
    opened = open_recipe(asked, tmp_path / "home", tiny_federation)
    assert opened.recipe.federation == str(tiny_federation)
    assert opened.recipe.evaluation == asked.evaluation, "agreed on for all sites"
    alone = plan_run(png_recipe(tiny_federation)).recipe
    assert alone.evaluation != asked.evaluation, "what this site's files alone would say"
    assert set(opened.federation.sites) >= {"north"}
    assert opened.home == tmp_path / "home"


@pytest.mark.parametrize("part", ["all", "without-south"])
def test_images_are_read_once_for_a_run_and_again_for_another_split(
    part: str, tiny_federation: Path, tmp_path: Path
) -> None:
    kind = "own-test" if part == "all" else "leave-one-site-out"
    log: list[str] = []
    opened = open_recipe(png_recipe(tiny_federation, protocol={"kind": kind}), tmp_path / "home", tiny_federation, log)
    policy = Policy(minimum_images=1)
    found = opened.part(part, policy)
    first = opened.data(found, policy, "run-1")
    assert opened.data(found, policy, "run-1") is first
    other_run = opened.data(found, policy, "run-2")
    assert other_run is not first, "what a site keeps lies in a run's own folder"
    assert sum("reading" in line for line in log) == 1, log


def test_a_split_of_its_own_is_drawn_by_the_secret_and_by_no_seed_of_the_server(
    tiny_federation: Path, tmp_path: Path
) -> None:
    own, of_recipe = Policy(split="own"), Policy(split="recipe")

    def split(home: str, policy: Policy, **asked: Any) -> str:
        opened = open_recipe(png_recipe(tiny_federation, **asked), tmp_path / home, tiny_federation)
        return opened.part("all", policy).split.to_csv()

    assert len({split("home", of_recipe, seed=seed) for seed in range(4)}) > 1, "or the test could not fail"
    drawn = [
        split("home", own, seed=seed, data={"labelled": 1, "label_seed": labels})
        for seed in (0, 1)
        for labels in (2, 3)
    ]
    assert len(set(drawn)) == 1
    assert len({split(f"home-{site}", own) for site in range(5)}) > 1, "another site has another secret"


def test_a_recipe_that_is_no_recipe_is_refused_in_a_sentence(tiny_federation: Path, tmp_path: Path) -> None:
    settings = SiteSettings("north", str(tiny_federation), str(tmp_path))
    with pytest.raises(PolyclinicError, match="the server's recipe"):
        OpenedRecipe.open("not = [a recipe", Policy(), settings, print, 1)
