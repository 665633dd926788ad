"""The files that a reader of the tutorial writes work as they are printed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from polyclinic.components import registry as component_registry
from polyclinic.methods import registry as method_registry
from support import call

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorials" / "compare-your-idea.md"
SMALL = ("network.width=2", "network.depth=2", "training.rounds=1", "evaluation.metrics=[dice]")


def block(kind: str) -> str:
    """The one block of code of a kind."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return found


@pytest.fixture(autouse=True)
def _nothing_of_the_tutorial_stays_registered() -> Iterator[None]:
    method_registry.methods()
    registries = [component_registry._COMPONENTS, method_registry._METHODS]
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.fixture
def recipe(tmp_path: Path, tiny_federation: Path) -> Path:
    """The recipe and the plugin of the page, beside a federation of the name that the recipe has."""
    (tmp_path / "my_idea.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(block("toml"), encoding="utf-8")
    (tmp_path / "my-federation").symlink_to(tiny_federation)
    return tmp_path / "recipe.toml"


def weights_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "checkpoints").rglob("*.safetensors")}


def test_the_idea_trains_and_without_strength_it_is_fedavg(recipe: Path, tmp_path: Path) -> None:
    shortened = [word for key in SMALL for word in ("--set", key)]
    methods = {"idea": "fedsmooth", "zero": "fedsmooth(weight=0,mu=0)", "plain": "fedavg"}
    for name, method in methods.items():
        done = call("run", recipe, "--method", method, "--out", tmp_path / name, *shortened)
        assert done.code == 0, done.err
    first = json.loads((tmp_path / "idea" / "events.jsonl").read_text().splitlines()[0])
    assert "smoothing" in json.dumps(first), "the term is in the record"
    assert weights_of(tmp_path / "zero") == weights_of(tmp_path / "plain") != {}
    assert weights_of(tmp_path / "idea") != weights_of(tmp_path / "plain")


def test_the_term_is_the_equation_of_its_docstring(recipe: Path) -> None:
    method_registry.load_plugins([str(recipe.parent / "my_idea.py")])
    smoothing = component_registry.find_component("smoothing")
    logits = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    term = smoothing(smoothing.Settings(weight=0.5), None).loss(SimpleNamespace(output=SimpleNamespace(logits=logits)))
    pixels = logits.movedim(1, -1).reshape(-1, 3).tolist()
    logs = [[value - math.log(sum(map(math.exp, pixel))) for value in pixel] for pixel in pixels]
    naive = sum(-sum(log_p) / 3 for log_p in logs) / len(pixels)
    assert float(term["smoothing"]) == pytest.approx(0.5 * naive, rel=1e-5)
