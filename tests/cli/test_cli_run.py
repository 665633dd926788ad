from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import polyclinic.api
from support import call

Finished = Callable[..., Path]


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_run_shows_progress_on_stderr_and_a_table_on_stdout(tiny_recipe_file: Path, tmp_path: Path) -> None:
    """Not a terminal: a line a round, no control characters."""
    done = call("run", tiny_recipe_file, "--out", tmp_path / "run", "--set", "training.rounds=2")
    assert done.code == 0
    lines = done.err.splitlines()
    assert lines[0] == "fedavg: reading 9 images of 2 sites"
    assert lines[1] == "fedavg: engine: sites one after another in this process, 1 thread (1 core, 2 sites)"
    assert [line.partition(" val Dice ")[0] for line in lines[2:]] == ["fedavg: round 1/2", "fedavg: round 2/2"]
    assert "\x1b" not in done.err + done.out
    table = done.out.splitlines()
    assert table[0].startswith("fedavg on tiny, seed 0")
    assert max(map(len, table[:-1])) <= 80
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for site in ("north", "south"):
        (row,) = (line for line in table if site in line)
        cells = row.split()
        values = summary["sites"][site]
        assert cells[1:] == [
            f"{values[name] * (1 if name in ('hd95', 'asd', 'assd') else 100):.2f}" for name in summary["average"]
        ]
    assert "distances in pixels" in done.out
    assert table[-1] == f"Run folder: {tmp_path / 'run'}"


def test_a_part_does_not_show_the_score_of_the_one_before(tiny_recipe_file: Path, tmp_path: Path) -> None:
    settings = ["protocol.kind=leave-one-site-out", "training.rounds=2", "training.validate_every=2"]
    done = call("run", tiny_recipe_file, "--out", tmp_path / "run", *(w for s in settings for w in ("--set", s)))
    assert done.code == 0, done.err
    shown = ["val Dice" in line for line in done.err.splitlines() if ": round " in line]
    assert shown == [False, True, False, True]


def test_set_and_method_win_over_the_recipe(tiny_recipe_file: Path, tmp_path: Path) -> None:
    done = call(
        "run", tiny_recipe_file, "-o", tmp_path / "run", "-m", "fedavg+proximal(mu=0.5)", "--json",
        "--set", "training.rounds=1", "--set", "seed=7", "--set", "evaluation.metrics=['dice']",
    )  # fmt: skip
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["method"], summary["seed"], summary["rounds"]) == ("fedavg+proximal(mu=0.5)", 7, 1)
    assert list(summary["average"]) == ["dice"]


def test_the_default_folder_names_federation_method_and_seed(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("run", tiny_recipe_file, "--set", "training.rounds=1", "--set", "seed=2")
    assert done.out.splitlines()[-1] == "Run folder: runs/tiny/fedavg-seed2"
    assert (tmp_path / "runs" / "tiny" / "fedavg-seed2" / "summary.json").exists()


def test_a_finished_run_with_resume_shows_its_table_at_once(tiny_recipe_file: Path, finished: Finished) -> None:
    folder = finished()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    done = call("run", tiny_recipe_file, "--out", folder, "--resume")
    assert done.code == 0
    assert done.err == ""
    assert "fedavg on tiny, seed 0" in done.out
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}


def test_parts_of_a_protocol_are_named_in_the_progress(tiny_recipe_file: Path, tmp_path: Path) -> None:
    done = call(
        "run", tiny_recipe_file, "--out", tmp_path / "run", "--set", "protocol.kind=leave-one-site-out",
        "--set", "training.rounds=1",
    )  # fmt: skip
    rounds = [line.partition(":")[0] for line in done.err.splitlines() if "round 1/1" in line]
    assert rounds == ["fedavg without-north", "fedavg without-south"]


def test_central_says_that_images_were_pooled_and_transfer_has_a_table(
    tiny_recipe_file: Path, finished: Finished
) -> None:
    central = call("run", tiny_recipe_file, "-m", "central", "--out", finished("central"), "--resume")
    assert "every image was pooled in one place" in central.out
    assert "left the sites" not in central.out
    folder, setting = finished("local", "protocol.transfer=true"), "protocol.transfer=true"
    local = call("run", tiny_recipe_file, "-m", "local", "--set", setting, "--out", folder, "--resume")
    assert "Dice of each site's model (row) at each site (column)" in local.out
    matrix = json.loads((folder / "summary.json").read_text())["transfer"]["all"]
    assert f"{100 * matrix['south']['north']:.2f}" in local.out


def test_an_interruption_prints_the_command_that_goes_on(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(polyclinic.api, "run", interrupted)
    out = tmp_path / "with space"
    done = call("run", tiny_recipe_file, "--resume", "--out", out, "-m", "fedavg+proximal(mu=1)")
    assert done.code == 130
    assert done.err.splitlines()[-1] == (
        f"  polyclinic run {tiny_recipe_file} --out '{out}' -m 'fedavg+proximal(mu=1)' --resume"
    )
