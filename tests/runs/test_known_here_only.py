"""What other processes could not know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import polyclinic
from grid_support import recipe_with
from polyclinic.core.errors import PolyclinicError
from polyclinic.evaluation import metric_registry
from polyclinic.methods import registry
from polyclinic.methods.registry import Method, load_plugins, part, register
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.known_here_only import known_here_only


@pytest.fixture
def own_method() -> Iterator[str]:
    """A method that this module registers, as a notebook would."""
    register(Method(name="of_this_test", parts=(part("weighted_mean"), part("proximal", mu=0.5))))
    yield "of_this_test"
    del registry._METHODS["of_this_test"]


def test_what_polyclinic_brings_is_known_everywhere() -> None:
    assert known_here_only(recipe_with(), ["fedavg", "fedavg + proximal(mu=0.1)", "pathfl-ssa"]) is None


def test_a_method_of_this_program_is_not(own_method: str) -> None:
    assert known_here_only(recipe_with(), ["fedavg", own_method]) == "the method 'of_this_test'"
    assert known_here_only(recipe_with(), ["fedavg"]) is None, "it is not used"
    named = with_changes(recipe_with(), {"plugins": (__name__,)})
    assert known_here_only(named, [own_method]) is None, "the other process imports it, too"


def test_a_metric_of_this_program_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_registry, "_METRICS", dict(metric_registry.known_metrics()))
    metric_registry.metric("odd", unit="none", better="lower")(lambda _: 1.0)
    recipe = recipe_with(evaluation={"metrics": ["dice", "odd"]})
    assert known_here_only(recipe, ["fedavg"]) == "the metric 'odd'"


def test_a_plugin_file_is_known_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", dict(registry.methods()))
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from polyclinic.methods.registry import Method, part, register\n"
        "register(Method(name='of_a_file', parts=(part('weighted_mean'),)))\n"
    )
    load_plugins([str(plugin)])
    assert known_here_only(recipe_with(plugins=[str(plugin)]), ["of_a_file"]) is None


def test_a_comparison_with_it_runs_in_this_process_and_says_why(
    own_method: str, tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook registers a method and compares it."""
    monkeypatch.setattr("polyclinic.runs.grid.SideBySide", lambda *_: pytest.fail("a process was started"))
    fast = ["training.rounds=1", "training.local_epochs=1"]
    table = polyclinic.compare(tiny_recipe_file, ["fedavg", own_method], out=tmp_path, seeds=1, overrides=fast)
    assert table.mean(own_method, "average") is not None
    with pytest.raises(PolyclinicError, match="jobs = 2: the method 'of_this_test' is known to this program only; put"):
        polyclinic.compare(tiny_recipe_file, [own_method], out=tmp_path / "two", seeds=2, overrides=fast, jobs=2)
