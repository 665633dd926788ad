"""The plan of a run: what is settled before anything starts, once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyclinic.federation.workspace as workspace_module
import polyclinic.runs.plan as plan_module
from polyclinic import run
from polyclinic.core.errors import PolyclinicError
from polyclinic.federation.workspace import build_workspace
from polyclinic.recipe.files import changed_keys, load_recipe, make_recipe, parse_recipe, recipe_text
from polyclinic.runs.plan import plan_run
from support import assert_same, write_volumes


def test_sizes_and_units_are_settled_and_nothing_else(tiny_recipe_file: Path) -> None:
    recipe = load_recipe(tiny_recipe_file)
    plan = plan_run(recipe)
    assert changed_keys(recipe, plan.recipe) == ["data.size", "evaluation.units"]
    assert (plan.recipe.data.size, plan.recipe.evaluation.units) == ((16, 16), "pixel")
    assert plan.method.name == "fedavg"
    assert plan.task == plan.federation.task
    assert [part.name for part in plan.parts] == ["all"]
    assert plan.parts is plan.parts
    assert plan_run(plan.recipe).recipe == plan.recipe


def test_the_network_follows_the_usual_spacing_of_all_files(tmp_path: Path, tiny_recipe_file: Path) -> None:
    for name, affine in (("long", np.diag([1, 1, 3, 1])), ("even", np.eye(4))):
        write_volumes(tmp_path / name, affine, shape=(16, 16, 8))
    table = {"network": {"width": 2, "anisotropic": "auto"}, "data": {"patch": [16, 16, 8]}}
    plans = {n: plan_run(make_recipe({"federation": str(tmp_path / n), **table})) for n in ("long", "even")}
    assert plans["long"].recipe.network.poolings == ((2, 2, 1), (2, 2, 2))  # type: ignore[attr-defined]
    assert plans["even"].recipe.network.poolings == ((2, 2, 2), (2, 2, 1))  # type: ignore[attr-defined]
    assert plans["long"].network.multiples == (4, 4, 2)
    whole = make_recipe({"federation": str(tmp_path / "long"), "network": table["network"]})
    assert plan_run(whole).recipe.data.size == (16, 16, 8)
    assert (
        plan_run(make_recipe(parse_recipe(recipe_text(plan_run(whole).recipe), "x"))).recipe == plan_run(whole).recipe
    )
    with pytest.raises(PolyclinicError, match="some files do not know theirs"):
        plan_run(load_recipe(tiny_recipe_file, ["network.anisotropic=auto"]))


def test_sizes_leave_room_along_each_axis(tmp_path: Path) -> None:
    write_volumes(tmp_path / "f", np.eye(4), shape=(16, 16, 8))
    network = {"width": 2, "depth": 2, "poolings": [[2, 2, 1], [2, 2, 1]]}

    def plan(*patch: int) -> None:
        plan_run(make_recipe({"federation": str(tmp_path / "f"), "network": network, "data": {"patch": patch}}))

    plan(8, 4, 1)
    with pytest.raises(PolyclinicError, match="at least 8 x 8 x 2 or a network that pools less"):
        plan(8, 3, 8)


def test_the_workspace_of_a_plan_is_that_of_its_recipe(tiny_recipe_file: Path) -> None:
    plan = plan_run(load_recipe(tiny_recipe_file, method="fedbcs"))
    workspace, expected = plan.open_workspace(), build_workspace(plan.recipe, plan.task)
    assert workspace.network is plan.network
    assert_same(workspace.initial_exchanged, expected.initial_exchanged)
    assert_same(dict(workspace.network.state_dict()), dict(expected.network.state_dict()))


def test_a_run_builds_one_network_and_parses_its_method_once(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def counted(name: str) -> None:
        real = getattr(plan_module, name)

        def count(*arguments: Any) -> Any:
            calls.append(name)
            return real(*arguments)

        for module in (plan_module, workspace_module):
            monkeypatch.setattr(module, name, count)

    counted("build_network")
    counted("parse_method")
    run(tiny_recipe_file, out=tmp_path / "run", overrides=["training.rounds=1", "training.local_epochs=1"])
    assert sorted(calls) == ["build_network", "parse_method"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.patch=[8,8,8]"], r"data\.patch = \[8, 8, 8\] does not fit a 2D task"),
        (["data.size=[16,16,16]"], r"data\.size = \[16, 16, 16\] does not fit a 2D task; give 2 numbers"),
        (["data.size=[4,4]"], "too small for this network"),
        (["data.patch=[4,4]"], "too small for this network"),
        (["evaluation.units=mm"], r"evaluation\.units = 'mm', but the files of site 'north' do not know their spacing"),
        (["method=fedavgg"], "'fedavgg' is not a method"),
    ],
)
def test_what_cannot_run_gets_a_sentence(overrides: list[str], words: str, tiny_recipe_file: Path) -> None:
    with pytest.raises(PolyclinicError, match=words):
        plan_run(load_recipe(tiny_recipe_file, overrides))


def test_a_federation_with_a_nominal_spacing_is_measured_in_millimetres(tiny_federation: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_federation, tmp_path / "spaced")
    description = folder / "federation.toml"
    description.write_text(description.read_text() + "spacing = [0.5, 0.5]\n")
    recipe = load_recipe("demo-nuclei", [f"federation={folder}", "network.width=2", "network.depth=2"])
    assert plan_run(recipe).recipe.evaluation.units == "mm"


def test_a_plan_of_one_site_knows_no_protocol_of_many_until_it_is_asked(tiny_recipe_file: Path) -> None:
    overrides = ["data.sites=[north]", "protocol.kind=leave-one-site-out"]
    plan = plan_run(load_recipe(tiny_recipe_file, overrides))
    with pytest.raises(PolyclinicError, match="needs two sites or more"):
        _ = plan.parts
