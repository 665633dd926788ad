"""Run folders and checkpoints of earlier versions still resume.

``tests/data_files/interrupted_run`` was written by an earlier version on the data of ``write_tiny_federation`` and
killed in its third and last round, after ``north`` had trained and before ``south`` had. Its method has kept weights, a
component's state at the sites and at the server, and tensors that the server broadcasts.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from polyclinic import run
from polyclinic.core.tensor_files import load_tensors
from polyclinic.federation.checkpoint import Checkpoint
from polyclinic.federation.site_store import SiteStore
from polyclinic.recipe.files import changed_keys, load_recipe
from polyclinic.runs.folder import RunFolder

INTERRUPTED = Path(__file__).resolve().parent.parent / "data_files" / "interrupted_run"


@pytest.fixture
def interrupted(tiny_federation: Path, tmp_path: Path) -> Path:
    """A copy of the folder whose recipe names a federation that exists here."""
    folder = shutil.copytree(INTERRUPTED, tmp_path / "interrupted")
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("FEDERATION", str(tiny_federation)))
    return folder


def nearly_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Two rounds come from another machine, whose sums may differ in the last digits, and with them a sign."""
    if not first.is_floating_point():  # how often the sign of a weight's change was the same
        return float((first != second).float().mean()) < 0.05
    return torch.allclose(first, second, rtol=1e-4, atol=1e-5)


def test_a_run_of_an_earlier_version_goes_on_to_the_result_of_an_uninterrupted_one(
    interrupted: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(interrupted / "recipe.toml")
    text, record = (interrupted / "recipe.toml").read_text(), RunFolder(interrupted).events()
    resumed = run(recipe, out=interrupted, resume=True)
    fresh = run(recipe, out=tmp_path / "fresh")
    assert (interrupted / "recipe.toml").read_text() == text, "the file of the older version stays as it is"
    assert not changed_keys(load_recipe(tmp_path / "fresh" / "recipe.toml"), recipe)
    events = RunFolder(interrupted).events()
    assert events[:2] == record
    assert [event["round"] for event in events] == [0, 1, 2]
    files, resumed_files = (
        sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors"))
        for folder in (fresh.folder, interrupted)
    )
    assert files == resumed_files
    assert len(files) == 4, "the newest state of each site, the last and the best model"
    for file in files:
        tensors, about = load_tensors(interrupted / file)
        expected, expected_about = load_tensors(fresh.folder / file)
        assert tensors.keys() == expected.keys(), file
        other = {"best_dice": 0, "best_scores": 0, "norms": 0}  # norms: the earlier version noted none
        assert {**about, **other} == {**expected_about, **other}, file
        for name, tensor in tensors.items():
            assert nearly_equal(tensor, expected[name]), (file, name)
    assert resumed.summary["bytes_up"] == fresh.summary["bytes_up"]
    assert resumed.summary["split_sha256"] == fresh.summary["split_sha256"]


def test_files_of_an_earlier_version_are_read_whole_and_written_the_same(interrupted: Path, tmp_path: Path) -> None:
    store, copies = SiteStore(interrupted / "sites" / "north" / "all"), SiteStore(tmp_path / "copies")
    state = store.load(before=3)
    assert (state.round, state.best_round) == (2, 0)
    assert state.personal.keys() == state.best.keys() != set()
    assert state.optimizer
    assert state.components.keys() == {"model_contrast"}
    copies.save(state)
    name = "round-00002.safetensors"
    assert (copies.folder / name).read_bytes() == (store.folder / name).read_bytes()

    server = Checkpoint(interrupted / "checkpoints" / "all").load()
    assert server is not None
    assert server.components.keys() == {"consistent_updates"}
    assert server.shared.keys() == {"class_prototypes"}
    copy = Checkpoint(tmp_path / "server")
    copy.save(server, new_best=False, unseen={})
    assert copy.server.read_bytes() == (interrupted / "checkpoints" / "all" / "server.safetensors").read_bytes()


def test_a_round_that_a_site_had_finished_starts_again_from_the_state_before_it(interrupted: Path) -> None:
    north = SiteStore(interrupted / "sites" / "north" / "all")
    assert north.load(before=2).round == 1
    assert json.loads((interrupted / "task.json").read_text())["classes"] == ["background", "disc"]
