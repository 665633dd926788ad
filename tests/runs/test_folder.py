"""The run folder as files: opened once, resumed with the same settings, readable after a kill."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

import polyclinic.runs.folder as module
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import save_tensors
from polyclinic.core.version import installed_versions
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from support import tiny_recipe


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    recipe = load_recipe(_saved(tmp_path))
    with pytest.raises(PolyclinicError, match="already holds a run; go on with --resume or choose another"):
        RunFolder(tmp_path / "run").open(recipe, resume=False)


def test_the_run_of_another_recipe_cannot_be_resumed(tmp_path: Path) -> None:
    recipe = load_recipe(_saved(tmp_path))
    with pytest.raises(PolyclinicError, match=r"holds a run of another recipe \(seed differs\); choose another folder"):
        RunFolder(tmp_path / "run").open(recipe.model_copy(update={"seed": 3}), resume=False)


def test_a_recipe_alone_is_no_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.begun()
    folder.recipe_file.write_text("seed = 1")
    assert not folder.begun()
    folder.events_file.write_text("")
    assert folder.begun()
    _saved(tmp_path)
    assert RunFolder(tmp_path / "run").begun()


def test_resuming_with_other_settings_names_every_key(tmp_path: Path) -> None:
    recipe = load_recipe(_saved(tmp_path))
    training = recipe.training.model_copy(update={"lr": 0.5, "batch_size": 7})
    changed = recipe.model_copy(update={"training": training, "seed": 3})
    with pytest.raises(PolyclinicError, match=r"recipe\.toml: differs .* in seed, training\.batch_size, training\.lr;"):
        RunFolder(tmp_path / "run").open(changed, resume=True)


def test_trackers_and_caches_may_change_on_resume(tmp_path: Path) -> None:
    recipe = load_recipe(_saved(tmp_path))
    tracking = recipe.tracking.model_copy(update={"tensorboard": True})
    data = recipe.data.model_copy(update={"cache": "elsewhere"})
    RunFolder(tmp_path / "run").open(recipe.model_copy(update={"tracking": tracking, "data": data}), resume=True)


def _saved(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run")
    folder.open(tiny_recipe(), resume=False)
    save_tensors(folder.part("all") / "server.safetensors", {}, {"round": 1})
    return folder.recipe_file


def test_a_kill_while_the_folder_is_made_leaves_no_half_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder(tmp_path / "run").open(tiny_recipe(), resume=False)
    folder = RunFolder(tmp_path / "run")
    folder.open(tiny_recipe(), resume=False)
    assert folder.recipe_file.exists()
    assert (folder.path / "versions.json").exists()


def test_files_that_a_kill_cut_short_are_removed_on_resume(tmp_path: Path) -> None:
    recipe = load_recipe(_saved(tmp_path))
    half = tmp_path / "run" / "checkpoints" / "all" / ".server.safetensors.4711.part"
    half.write_bytes(b"half")
    RunFolder(tmp_path / "run").open(recipe, resume=True)
    assert not half.exists()


def test_the_record_survives_a_line_cut_by_a_kill(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for number in range(3):
        folder.add_event({"part": "all", "round": number})
    folder.add_event({"part": "other", "round": 0})
    text = folder.events_file.read_text() + '{"part": "all", "rou'
    folder.events_file.write_text(text)
    assert [event["round"] for event in folder.events("all")] == [0, 1, 2]
    folder.drop_events_after("all", done=1)
    assert [(event["part"], event["round"]) for event in folder.events()] == [("all", 0), ("other", 0)]
    folder.add_event({"part": "all", "round": 1})
    assert [json.loads(line)["round"] for line in folder.events_file.read_text().splitlines()] == [0, 0, 1]


def test_a_full_disk_while_recording_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(
        PolyclinicError, match=r"events\.jsonl: cannot be written \(No space left on device\).*--resume"
    ):
        RunFolder(tmp_path).add_event({})


def test_a_damaged_summary_gets_a_sentence(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.summary() is None
    folder.summary_file.write_text("{")
    with pytest.raises(PolyclinicError, match=r"summary\.json: cannot be read as JSON"):
        folder.summary()


def test_versions_name_what_numbers_depend_on() -> None:
    found = installed_versions()
    assert {"python", "machine", "polyclinic", "torch", "monai", "numpy", "scipy"} <= found.keys()
    assert "not installed" not in found.values()


def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from polyclinic.runs.folder import RunFolder\n"
        f"with RunFolder(Path({str(tmp_path)!r})).locked():\n"
        "    print('held', flush=True); sys.stdin.readline()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(PolyclinicError, match="another process is working on this run"),
            RunFolder(tmp_path).locked(),
        ):
            pass
        other.kill()
    with RunFolder(tmp_path).locked():
        pass
