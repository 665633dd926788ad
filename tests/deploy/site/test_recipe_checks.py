"""A recipe is refused before a file of the site is opened: the data folder of these sites does not exist."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flower_support import OPEN, make_handler, png_recipe, reason_of, request_for
from polyclinic.deploy.site import recipe_checks
from polyclinic.deploy.site.recipe_checks import outline, refusal_before_data
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.site_policy import Policy
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.recipe.files import make_recipe
from support import tiny_recipe, tiny_task


@pytest.mark.parametrize(
    ("method", "policy", "sections", "words"),
    [
        ("fedavg", 'methods = ["fedprox"]', {}, "does not allow the method fedavg"),
        ("fedavg+proximal(mu=1)", 'methods = ["fedavg"]', {}, "does not allow the method fedavg+proximal(mu=1)"),
        ("fedbcs", "shared = []", {}, "does not let cdpa/encoder leave"),
        ("fedavg", "", {"plugins": ["of_the_server"]}, "does not allow the plugin of_the_server"),
        ("fedavg", "", {"training": {"local_epochs": 10**9}}, "max_steps_per_round"),
        ("fedavg", "max_memory_gb = 0.001", {"network": {"width": 64}}, "max_memory_gb"),
    ],
)
def test_what_is_refused_touches_no_folder_of_the_site(
    method: str, policy: str, sections: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the site opened its federation first, and failed here at the folder that is not there."""
    monkeypatch.setattr("polyclinic.deploy.site.opened_recipe.plan_run", _fail)
    handler = make_handler(tmp_path / "home", tmp_path / "nowhere", policy=OPEN + policy)
    recipe = png_recipe(tmp_path / "nowhere", method, **sections)
    for act, split in (("describe", ""), ("train", ""), ("evaluate", "test")):
        reason = reason_of(handler.answer(request_for(act, recipe, Broadcast(0, {}), split=split)))
        assert reason.startswith("refused: ")
        assert words in reason


def _fail(*_: Any) -> None:
    raise AssertionError("the site opened its data")


def test_an_allowed_recipe_is_looked_for_in_the_folder(tmp_path: Path) -> None:
    log: list[str] = []
    handler = make_handler(tmp_path / "home", tmp_path / "nowhere", log=log)
    reason_of(handler.answer(request_for("train", png_recipe(tmp_path / "nowhere"), Broadcast(0, {}))))
    assert any("nowhere: no such folder" in line for line in log)


def test_a_recipe_that_is_a_book_is_not_read(tmp_path: Path) -> None:
    handler = make_handler(tmp_path / "home", tmp_path / "nowhere")
    asked = request_for("train", png_recipe(tmp_path / "nowhere"), Broadcast(0, {}))
    reason = reason_of(handler.answer(replace(asked, recipe="#" * 10**6)))
    assert "longer than 100000 letters" in reason


@pytest.mark.parametrize("method", ["fedavg", "fedbcs", "pathfl", "fedfa", "harmofl", "fedcontrast"])
def test_an_outline_says_of_a_method_what_its_workspace_says(method: str) -> None:
    recipe = tiny_recipe(method)
    workspace = build_workspace(recipe, tiny_task())
    outlined = outline(recipe, parse_method(method))
    assert outlined is not None
    names = {component: [shared.name for shared in declared] for component, declared in outlined.declared.items()}
    assert names == {
        component: [shared.name for shared in declared] for component, declared in workspace.declared().items()
    }


def test_an_outline_of_a_giant_takes_no_memory() -> None:
    recipe = make_recipe({"federation": "none", "network": {"width": 4096, "depth": 6}, "data": {"size": [64, 64]}})
    outlined = outline(recipe, parse_method("fedavg"))
    assert outlined is not None
    assert outlined.weight_bytes > 10**12
    assert "network and batches need" in str(refusal_before_data(Policy(max_memory_gb=100), recipe))


def test_a_network_that_computes_while_it_is_built_is_asked_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> None:
        float(torch.ones(1).sum())  # there are no numbers on the device meta

    monkeypatch.setattr(recipe_checks, "build_network", build)
    assert outline(tiny_recipe(), parse_method("fedavg")) is None
    assert refusal_before_data(Policy(), tiny_recipe()) is None
