"""Approved recipes: what is written into a policy, and what a site refuses."""

from __future__ import annotations

import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from flower_support import OPEN, make_handler, png_recipe, reason_of, request_for
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.approvals import approve_recipe
from polyclinic.exchange.messages import Broadcast, Description, Update
from polyclinic.federation.site_policy import load_policy
from polyclinic.recipe.fingerprint import recipe_sha256

A, B, C = "a" * 64, "b" * 64, "c" * 64


def test_only_an_approved_recipe_runs(tiny_federation: Path, tmp_path: Path) -> None:
    approved, other = png_recipe(tiny_federation), png_recipe(tiny_federation, training={"lr": 0.5})
    policy = f'{OPEN}recipes = ["{recipe_sha256(approved)}"]\n'
    handler = make_handler(tmp_path / "home", tiny_federation, policy=policy, device="cpu")
    for act in ("describe", "train"):
        reason = reason_of(handler.answer(request_for(act, other)))
        assert reason.startswith("refused: the site runs approved recipes only")
        assert recipe_sha256(other) in reason
        assert "polyclinic site approve RECIPE" in reason
    assert not (tmp_path / "home" / "runs").exists()
    assert isinstance(handler.answer(request_for("describe", approved, Broadcast(-1, {}))), Description)
    assert isinstance(handler.answer(request_for("train", approved)), Update)
    unreadable = replace(request_for("train", approved), recipe="method = [")
    assert "approved recipes only, and this one is not (unreadable)" in reason_of(handler.answer(unreadable))
    Path(str(handler.settings.policy)).write_text(f'{OPEN}recipes = ["{A}"]\n')
    assert "approved recipes only" in reason_of(handler.answer(request_for("train", approved))), "taken back"


def test_more_rounds_are_another_recipe(tiny_federation: Path, tmp_path: Path) -> None:
    approved = png_recipe(tiny_federation, training={"rounds": 2})
    policy = f'{OPEN}recipes = ["{recipe_sha256(approved)}"]\n'
    handler = make_handler(tmp_path / "home", tiny_federation, policy=policy, device="cpu")
    more = png_recipe(tiny_federation, training={"rounds": 200})
    assert "approved recipes only" in reason_of(handler.answer(request_for("train", more)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "minimum_images = 3  # ours",
        "# only a comment\n",
        "recipes = []\n",
        "recipes = [ ] # none yet ]\nminimum_images = 3\n",
        f'minimum_images = 3\nrecipes = ["{A}"]\nplugins = ["x"]\n',
        f'recipes = [\n    "{A}",  # the first [of May]\n    "{B}"  # no comma ]\n]\n\n# the end\nplugins = ["x"]\n',
        f"recipes = ['{A}',]",
        f'"recipes" = [\n"{A}",\n]\n',
        '# recipes = ["x"]\nmethods = ["*"]\n',
        f'methods = ["*"]\r\nrecipes = [\r\n    "{A}",\r\n]\r\n',
    ],
)
def test_the_rest_of_a_policy_stays_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(text.encode())
    path.chmod(0o640)
    before = tomllib.loads(text)
    assert approve_recipe(path, C)
    after = path.read_bytes().decode()
    assert tomllib.loads(after) == {**before, "recipes": [*before.get("recipes", []), C]}
    remaining = iter(after)
    assert all(letter in remaining for letter in text), "every letter of before is there, in its order"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert not approve_recipe(path, C), "it is listed"
    assert path.read_bytes().decode() == after
    assert load_policy(path).recipes[-1] == C


def test_a_link_to_a_policy_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text("minimum_images = 2\n")
    (tmp_path / "policy.toml").symlink_to(tmp_path / "real.toml")
    assert approve_recipe(tmp_path / "policy.toml", C)
    assert (tmp_path / "policy.toml").is_symlink()
    assert load_policy(tmp_path / "real.toml").recipes == (C,)


@pytest.mark.parametrize("text", ["recipes = 5", "recipes = ['x']", "colour = 1", "recipes = ["])
def test_a_policy_with_a_mistake_is_not_touched(text: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(PolyclinicError, match=r"policy\.toml"):
        approve_recipe(tmp_path / "policy.toml", C)
    assert (tmp_path / "policy.toml").read_text() == text
