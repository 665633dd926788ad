from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyclinic.deploy.coordinator import run_server as module
from polyclinic.deploy.coordinator.run_server import ServerSettings
from support import call


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``run_server`` was called with; nothing is started."""
    calls: list[Any] = []

    def run_server(recipe: Any, out: Path, settings: ServerSettings, observer: Any, resume: bool) -> Any:
        calls.append((recipe, out, settings, resume))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_server", run_server)
    return calls


def test_options_reach_the_server_and_ctrl_c_says_how_to_go_on(
    started: list[Any], tiny_recipe_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "with space"
    done = call(
        "server", tiny_recipe_file, "--out", out, "--keys", tmp_path, "--sites", " north, south,", "--port", "9000",
        "-m", "fedbn", "--set", "training.rounds=7", "--resume",
    )  # fmt: skip
    ((recipe, folder, settings, resume),) = started
    assert (recipe.method, recipe.training.rounds, folder, resume) == ("fedbn", 7, out, True)
    assert settings == ServerSettings("0.0.0.0", 9000, tmp_path, ("north", "south"))
    assert done.code == 130
    assert done.err.splitlines()[-1] == (
        f"  polyclinic server {tiny_recipe_file} --out '{out}' --keys {tmp_path} --sites ' north, south,' --port 9000 "
        "-m fedbn --set training.rounds=7 --resume"
    )


def test_without_encryption_there_is_a_warning(started: list[Any], tiny_recipe_file: Path, tmp_path: Path) -> None:
    done = call("server", tiny_recipe_file, "--out", tmp_path, "--insecure", "--sites", "north")
    assert done.err.startswith("warning: --insecure: no encryption and no keys")
    assert started[0][2] == ServerSettings("0.0.0.0", 8443, None, ("north",))
    assert started[0][3] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "error: Give --keys FOLDER (made with polyclinic keys server), or --insecure"),
        (("--keys", "k", "--insecure"), "error: --keys and --insecure exclude each other"),
        (("--keys", "k", "--set", "training.round=1"), "unknown key 'training.round'"),
        (("--keys", "k", "--port", "70000"), "70000"),
    ],
)
def test_wrong_input_gets_a_sentence_and_starts_nothing(
    arguments: tuple[str, ...], words: str, started: list[Any], tiny_recipe_file: Path, tmp_path: Path
) -> None:
    done = call("server", tiny_recipe_file, "--out", tmp_path / "run", *arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert started == []
    assert not (tmp_path / "run").exists()


def test_the_end_is_a_table_or_the_summary_as_json(
    tiny_recipe_file: Path, finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = finished()
    summary = json.loads((folder / "summary.json").read_text())
    monkeypatch.setattr(module, "run_server", lambda *_: summary)
    arguments = ("server", tiny_recipe_file, "--out", folder, "--keys", "k")
    shown = call(*arguments)
    assert shown.out.startswith("fedavg on tiny, seed 0")
    assert shown.out.splitlines()[-1] == f"Run folder: {folder}"
    assert json.loads(call(*arguments, "--json").out) == summary
