"""Engines by name: the built-in ones, those of a plugin, and names that nobody registered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors
from polyclinic.engines import registry
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.registry import ENGINES, engine, find_engine, launcher
from support import assert_same, call

PLUGIN = '''
"""An engine that asks the sites of a round in the opposite order and answers in the right one."""
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.registry import engine

@engine("backwards", "sites one after another, the last one first")
class Backwards(InProcess):
    def train(self, broadcast, sites):
        answers = {update.site: update for update in super().train(broadcast, sites[::-1])}
        return iter([answers[site] for site in sites])
'''


@pytest.fixture(autouse=True)
def _same_engines_afterwards() -> Iterator[None]:
    find_engine("inprocess")
    before = dict(ENGINES)
    yield
    ENGINES.clear()
    ENGINES.update(before)


def test_an_engine_of_a_plugin_file_runs_a_recipe(tiny_recipe_file: Path, finished, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    plugin = tmp_path / "backwards.py"
    plugin.write_text(PLUGIN)
    overrides = [f"plugins=['{plugin}']", "engine.name=backwards"]
    result = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=overrides)
    assert result.summary["engine"] == "backwards"
    weights, expected = (
        load_tensors(folder / "checkpoints" / "all" / "server.safetensors")[0] for folder in (result.folder, finished())
    )
    assert_same(weights, expected)
    events = [json.loads(line) for line in (result.folder / "events.jsonl").read_text().splitlines()]
    assert [list(event["samples"]) for event in events] == [["north", "south"]] * 3


def test_a_typing_error_gets_the_closest_name_and_all_names(tiny_recipe_file: Path, tmp_path: Path) -> None:
    done = call("run", tiny_recipe_file, "--engine", "inproces", "--out", tmp_path / "run")
    assert done.code == 2
    assert "engine.name = 'inproces' is not an engine, did you mean 'inprocess'?" in done.err
    assert "Known: auto, flower, inprocess, simulation, workers." in done.err
    assert not (tmp_path / "run").exists()


def test_an_engine_opens_here_or_launches_elsewhere() -> None:
    entry = find_engine("inprocess")
    assert entry.opens is InProcess
    assert entry.launches is None

    @launcher("rocket", "sites on the moon")
    def launch(*_: object) -> None: ...

    entry = find_engine("rocket")
    assert (entry.opens, entry.launches, entry.about) == (None, launch, "sites on the moon")


def test_two_engines_of_one_name_are_refused() -> None:
    with pytest.raises(PolyclinicError, match=r"Two engines are called 'inprocess' \(polyclinic\.engines.*rename one"):

        @engine("inprocess", "another one")
        class Other(InProcess):
            pass

    assert find_engine("inprocess").opens is InProcess
    engine("inprocess", "the same again")(InProcess)  # a module that is imported twice is no second engine


def test_every_file_of_the_folder_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr("importlib.import_module", imported.append)
    registry._import_all.__wrapped__()  # type: ignore[attr-defined]
    assert "polyclinic.engines.inprocess" in imported
