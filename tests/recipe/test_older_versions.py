"""A run's own recipe says what the run did, whatever has become of the defaults since."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.recipe.files import changed_keys, load_recipe, recipe_text
from polyclinic.recipe.older_versions import BEFORE_THE_KEY

SHORT = 'federation = "demo:nuclei"\n[network]\n[training]\n[strong]\n[evaluation]\n'


@pytest.fixture
def run_recipe(tmp_path: Path) -> Path:
    """The recipe of a run from before the keys existed."""
    path = tmp_path / "recipe.toml"
    path.write_text(SHORT)
    (tmp_path / "versions.json").write_text("{}")
    return path


def test_a_runs_recipe_has_what_was_done_before_a_key_existed(run_recipe: Path) -> None:
    recipe = load_recipe(run_recipe)
    for section, values in BEFORE_THE_KEY.items():
        assert {key: getattr(getattr(recipe, section), key) for key in values} == values


def test_every_key_of_the_list_is_one_of_the_recipe(run_recipe: Path) -> None:
    recipe = load_recipe(run_recipe)
    for section, values in BEFORE_THE_KEY.items():
        assert values.keys() <= type(getattr(recipe, section)).model_fields.keys()


def test_a_users_recipe_has_the_defaults_of_today(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(SHORT)
    own = tmp_path / "own.toml"
    own.write_text('federation = "demo:nuclei"\n')
    assert not changed_keys(load_recipe(path), load_recipe(own))


def test_values_that_a_run_wrote_down_stay(run_recipe: Path) -> None:
    written = load_recipe(run_recipe, ["network.activation=leaky-relu", "strong.clip=true"])
    run_recipe.write_text(recipe_text(written))
    assert not changed_keys(load_recipe(run_recipe), written)


def test_the_network_of_a_plugin_gets_no_keys_of_ours(run_recipe: Path) -> None:
    run_recipe.write_text('federation = "demo:nuclei"\n[network]\nname = "of-a-plugin"\nown = 1\n')
    assert "activation" not in load_recipe(run_recipe).network.model_dump()
