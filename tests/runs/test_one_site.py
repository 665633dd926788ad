"""A site on its own: one round from a message to a message."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyclinic.errors import PolyclinicError
from polyclinic.federation.bench import build_bench
from polyclinic.federation.messages import Broadcast, Update, load_message, save_message
from polyclinic.recipe_files import load_recipe
from polyclinic.runs.one_site import answer, main
from polyclinic.runs.sites import open_for


@pytest.fixture
def broadcast(tiny_recipe_file: Path) -> Broadcast:
    federation, recipe = open_for(load_recipe(tiny_recipe_file))
    return Broadcast(0, build_bench(recipe, federation.task).exchanged_weights())


def test_a_round_from_file_to_file(tiny_recipe_file: Path, broadcast: Broadcast, tmp_path: Path) -> None:
    save_message(tmp_path / "in", broadcast)
    main([str(tiny_recipe_file), "south", str(tmp_path / "state"), str(tmp_path / "in"), str(tmp_path / "out")])
    update = load_message(tmp_path / "out")
    assert isinstance(update, Update)
    assert (update.site, update.round, update.samples, update.steps) == ("south", 0, 2, 2)
    assert update.weights.keys() == broadcast.weights.keys()
    assert any(not torch.equal(update.weights[name], tensor) for name, tensor in broadcast.weights.items())
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["round-00000.safetensors"]


def test_an_unknown_site_is_named(tiny_recipe_file: Path, broadcast: Broadcast, tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"tiny: has no site 'east'; it has north, south\."):
        answer(load_recipe(tiny_recipe_file), "east", tmp_path, broadcast)


@pytest.mark.parametrize("case", ["arguments", "missing", "update"])
def test_errors_are_sentences_and_no_update_is_written(
    case: str, tiny_recipe_file: Path, broadcast: Broadcast, tmp_path: Path
) -> None:
    if case == "update":
        save_message(tmp_path / "in", Update("south", 0, broadcast.weights, 1, 1))
    arguments = [str(tiny_recipe_file), "south", str(tmp_path / "state"), str(tmp_path / "in"), str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stop:
        main(arguments[:2] if case == "arguments" else arguments)
    expected = {"arguments": "one_site takes RECIPE", "missing": "not a readable", "update": "holds an update"}
    assert str(stop.value.code).startswith("error: ")
    assert expected[case] in str(stop.value.code)
    assert not (tmp_path / "out").exists()
