"""Help comes at once and fits a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import polyclinic
from support import call

COMMANDS = {
    "run": ["RECIPE", "--method", "--set", "--out", "--resume", "--json"],
    "compare": ["RECIPE", "--methods", "--seeds", "--out", "--set", "--metric", "--jobs"],
    "ablate": ["RECIPE", "--method", "--components", "--seeds", "--out", "--set", "--metric", "--jobs", "--json"],
    "study": ["RECIPE", "--vary", "--methods", "--seeds", "--out", "--set", "--metric", "--jobs", "--json"],
    "predict": ["RUN", "IMAGES", "--out", "--site", "--part", "--model", "--probabilities", "--overwrite", "--jobs"],
    "watch": ["RUN_OR_SERVER", "--ca", "--token-file", "--insecure", "--every", "--once", "--json"],
    "methods": ["--json"],
    "explain": ["METHOD", "--recipe", "--set", "--json"],
    "export": ["RUN", "--to", "--out", "--site", "--part", "--model", "--json"],
    "data": ["check", "demo"],
    "data check": ["--sheet", "--json"],
    "data demo": ["--seed"],
    "keys": ["server", "site", "accept", "remove", "list", "demo"],
    "keys server": ["--host", "--days"],
    "keys site": ["NAME", "--out"],
    "keys accept": ["SERVER_FOLDER", "--replace"],
    "keys remove": ["SERVER_FOLDER", "NAME"],
    "keys list": ["SERVER_FOLDER", "--json"],
    "keys demo": ["--sites", "--host"],
}


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from pathlib import Path
from polyclinic.cli import main
for command in [[], *map(str.split, {list(COMMANDS)!r})]:
    sys.argv = ["polyclinic", *command, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
heavy = {{"torch", "monai", "numpy", "scipy", "matplotlib", "nibabel", "mlflow", "cryptography"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: polyclinic") == len(COMMANDS) + 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_in_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = call(*command.split(), "--help")
    assert done.code == 0
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in done.out
    assert f"Usage: polyclinic {command} " in done.out
    for word in COMMANDS[command]:
        assert word in done.out
    about = lines[3].strip()
    assert about[0].isupper(), "the first sentence says what it is for"


def test_the_first_page_names_every_command() -> None:
    done = call("--help")
    for command in COMMANDS:
        assert f" {command.split()[0]} " in done.out


def test_completion_knows_what_is_imported_on_first_use() -> None:
    assert set(polyclinic.__all__) <= set(dir(polyclinic))
    assert "__doc__" in dir(polyclinic)


def test_no_arguments_show_the_help_and_version_is_the_version() -> None:
    assert "Usage: polyclinic" in call().out
    assert call("--version").out == f"polyclinic {polyclinic.__version__}\n"


def test_wrong_usage_exits_with_2_and_no_traceback() -> None:
    for arguments in (["run"], ["runn"], ["compare", "demo-nuclei"], ["run", "demo-nuclei", "--fast"]):
        done = call(*arguments)
        assert done.code == 2
        assert "Traceback" not in done.err
        assert "Usage: polyclinic" in done.err


def test_asked_to_end_the_command_line_still_cleans_up(tmp_path: Path) -> None:
    """SIGTERM, as from a scheduler: what was started is ended, as after Ctrl-C."""
    code = (
        "import os, signal, time, pathlib, polyclinic.cli as cli\n"
        "def app():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)\n"
        "    finally:\n"
        f"        pathlib.Path({str(tmp_path / 'cleaned')!r}).touch()\n"
        "cli.app = app\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False)
    assert done.returncode == 143
    assert (tmp_path / "cleaned").exists()


def test_arguments_without_a_dash_are_explained_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of click lose the words that typer gives to an argument."""
    monkeypatch.setenv("COLUMNS", "120")
    out = call("predict", "--help").out
    assert "A run folder." in out
    assert "a folder of images" in out
