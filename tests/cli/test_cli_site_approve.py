"""A hospital gets a recipe, looks at it and approves it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from polyclinic.federation.site_policy import load_policy
from polyclinic.recipe.files import load_recipe
from polyclinic.recipe.fingerprint import recipe_sha256
from support import call


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """As it comes from a coordinator, whose folders are not here."""
    text = (
        'federation = "/srv/of/the/coordinator"\nmethod = "fedavg"\n[data]\nsize = [16, 16]\nsites = ["north", "far"]\n'
        "[network]\nwidth = 2\ndepth = 2\n[training]\nrounds = 3\n[engine]\ndevice = 'cpu'\n"
    )
    (tmp_path / "recipe.toml").write_text(text)
    (tmp_path / "policy.toml").write_text("# ours\nminimum_images = 2\n")
    return tmp_path / "recipe.toml"


def test_what_would_leave_is_shown_and_the_fingerprint_is_listed(recipe: Path, tiny_federation: Path) -> None:
    policy = recipe.parent / "policy.toml"
    sha256 = recipe_sha256(load_recipe(recipe))
    for data in (tiny_federation, tiny_federation / "north"):
        shown = call("site", "approve", recipe, "--data", data)
        assert shown.code == 0, shown.err
        assert "What leaves a site in every round" in shown.out
        assert "3 rounds" in shown.out
        assert f'recipes = ["{sha256}"]' in shown.out
    assert policy.read_text() == "# ours\nminimum_images = 2\n"
    done = call("site", "approve", recipe, "--data", tiny_federation, "--policy", policy, "--yes")
    assert done.code == 0, done.err
    assert "the site runs this recipe and no other" in done.out
    assert load_policy(policy).recipes == (sha256,)
    assert policy.read_text().startswith("# ours\nminimum_images = 2\n")
    again = call("site", "approve", recipe, "--data", tiny_federation, "--policy", policy, "--yes")
    assert "approved already" in again.out


def test_json_is_alone_on_stdout_and_lists_only_with_yes(recipe: Path, tiny_federation: Path) -> None:
    policy, sha256 = recipe.parent / "policy.toml", recipe_sha256(load_recipe(recipe))
    command = ("site", "approve", recipe, "--data", tiny_federation, "--policy", policy, "--json")
    facts = json.loads(call(*command).out)
    assert (facts["recipe"], facts["approved"]) == (sha256, False)
    explained = call(
        "explain", "fedavg", "--recipe", recipe, "--set", f"federation={tiny_federation}", "--set",
        "data.sites=[north]", "--json",
    )  # fmt: skip
    assert facts["explanation"].keys() == json.loads(explained.out).keys()
    assert load_policy(policy).recipes == ()
    for _ in range(2):
        assert json.loads(call(*command, "--yes").out)["approved"] is True
        assert load_policy(policy).recipes == (sha256,)


def test_both_ends_see_the_same_fingerprint(recipe: Path, tiny_federation: Path) -> None:
    """The coordinator, from its own folder and with its own engine."""
    shown = call("site", "approve", recipe, "--data", tiny_federation)
    sha256 = recipe_sha256(load_recipe(recipe))
    explained = call(
        "explain", "fedavg", "--recipe", recipe, "--set", f"federation={tiny_federation}",
        "--set", "engine.name=flower", "--set", "data.sites=[north]",
    )  # fmt: skip
    assert explained.code == 0, explained.err
    for done in (shown, explained):
        assert f"Recipe sha256 {sha256}" in done.out


def test_an_override_is_another_recipe(recipe: Path, tiny_federation: Path) -> None:
    shown = call("site", "approve", recipe, "--data", tiny_federation, "--set", "training.rounds=9")
    assert recipe_sha256(load_recipe(recipe)) not in shown.out
    assert recipe_sha256(load_recipe(recipe, ["training.rounds=9"])) in shown.out


def test_who_does_not_agree_changes_nothing(
    recipe: Path, tiny_federation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = recipe.parent / "policy.toml"
    monkeypatch.setattr("typer.confirm", lambda *_: False)
    done = call("site", "approve", recipe, "--data", tiny_federation, "--policy", policy)
    assert done.code == 1
    assert "Nothing was changed." in done.out
    assert load_policy(policy).recipes == ()


def test_code_beside_a_recipe_is_not_run_to_look_at_it(recipe: Path, tiny_federation: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    recipe.write_text('plugins = ["theirs.py"]\n' + recipe.read_text())
    done = call("site", "approve", recipe, "--data", tiny_federation)
    assert done.code == 2
    assert "does not allow the plugin" in done.err
    assert not (tmp_path / "ran").exists()


def test_a_plugin_that_the_policy_names_needs_no_further_word(
    recipe: Path, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_module_of_the_site.py").write_text("")
    recipe.write_text('plugins = ["a_module_of_the_site"]\n' + recipe.read_text())
    (tmp_path / "policy.toml").write_text('minimum_images = 2\nplugins = ["a_module_of_the_site"]\n')
    done = call("site", "approve", recipe, "--data", tiny_federation, "--policy", tmp_path / "policy.toml", "--yes")
    assert (done.code, "Approved." in done.out) == (0, True), done.err
    monkeypatch.delitem(sys.modules, "a_module_of_the_site")


def test_a_missing_folder_or_policy_gets_a_sentence(recipe: Path, tiny_federation: Path, tmp_path: Path) -> None:
    nowhere = call("site", "approve", recipe)
    assert nowhere.code == 2
    assert "give the site's own images with --data" in nowhere.err
    missing = call("site", "approve", recipe, "--data", tiny_federation, "--policy", tmp_path / "none.toml")
    assert missing.code == 2
    assert "none.toml: no such file" in missing.err
