"""A site on its own: one round from a message to a message."""

from __future__ import annotations

import shutil
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


@pytest.mark.parametrize("kind", ["leave-one-site-out", "k-fold"])
def test_every_site_trains_under_any_protocol(kind: str, tiny_recipe_file: Path, tmp_path: Path) -> None:
    """Also the first one, which the first part of leave one site out only tests."""
    federation, recipe = open_for(load_recipe(tiny_recipe_file, [f"protocol.kind={kind}"]))
    broadcast = Broadcast(0, build_bench(recipe, federation.task).exchanged_weights())
    plain = load_recipe(tiny_recipe_file)
    for site in federation.sites:
        update = answer(recipe, site, tmp_path / kind / site, broadcast)
        expected = answer(plain, site, tmp_path / "plain" / site, broadcast)
        assert (update.samples, update.steps) == (expected.samples, expected.steps)
        assert update.steps > 0
        assert all(torch.equal(update.weights[name], tensor) for name, tensor in expected.weights.items())


def test_a_folder_of_one_site_is_enough(
    tiny_federation: Path, tiny_recipe_file: Path, broadcast: Broadcast, tmp_path: Path
) -> None:
    shutil.copytree(tiny_federation / "south", tmp_path / "own" / "south")
    shutil.copy(tiny_federation / "federation.toml", tmp_path / "own")
    overrides = [f"federation={tmp_path / 'own'}", "protocol.kind=leave-one-site-out"]
    assert answer(load_recipe(tiny_recipe_file, overrides), "south", tmp_path / "state", broadcast).steps > 0


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
