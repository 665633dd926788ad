"""One start of a run: what is written for the server's process, and the run's name at the sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.coordinator.launch import Launch, LaunchFiles, run_name
from polyclinic.runs.folder import RunFolder

LAUNCH = Launch("a-name", "seed = 1", ("north", "south"), "tiny", named=True, resume=True)


def test_a_launch_comes_back_and_what_an_earlier_start_left_is_gone(tmp_path: Path) -> None:
    files = LaunchFiles(tmp_path)
    files.folder.mkdir()
    for file in (files.outcome, files.pid, files.relay):
        file.write_text("of before")
    LAUNCH.save(tmp_path)
    assert Launch.load(tmp_path) == LAUNCH
    assert [path.name for path in files.folder.iterdir()] == ["plan.json"]
    assert files.outcome == RunFolder(tmp_path).outcome_file


def test_a_run_keeps_its_name_until_it_starts_with_another_recipe_and_no_round(tmp_path: Path) -> None:
    first = run_name(tmp_path, "seed = 1")
    assert run_name(tmp_path) == run_name(tmp_path, "seed = 2") == first, "nothing was started"
    LAUNCH.save(tmp_path)
    assert run_name(tmp_path, "seed = 1") == run_name(tmp_path) == first
    second = run_name(tmp_path, "seed = 2")
    assert second != first
    checkpoint = tmp_path / "checkpoints" / "all" / "server.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    assert run_name(tmp_path, "seed = 3") == second, "sites have state of its rounds"


def test_an_ordinary_flower_run_is_described_by_its_configuration(tiny_recipe_file: Path, tmp_path: Path) -> None:
    config = {
        "recipe": str(tiny_recipe_file),
        "method": "fedbn",
        "sites": "south, north",
        "set": "seed=7;training.lr=0.5",
    }
    launch = Launch.from_config(config, tmp_path)
    assert launch.sites == ("north", "south")
    assert (launch.named, launch.resume, launch.federation) == (False, False, "tiny")
    assert "seed = 7" in launch.recipe
    assert 'method = "fedbn"' in launch.recipe
    assert launch.run == run_name(tmp_path)
    with pytest.raises(PolyclinicError, match="sites: name the sites that take part"):
        Launch.from_config({**config, "sites": ""}, tmp_path)
