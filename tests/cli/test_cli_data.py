from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyclinic.cli.data import app
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.locks import shared_lock
from polyclinic.data.phantoms import DEMOS, write_demo

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_demo("prostate", tmp_path / "fed", size=16, cases=1)
    return tmp_path / "fed"


def test_check_prints_sites_within_80_columns_and_says_where_the_sheet_is(folder: Path) -> None:
    result = runner.invoke(app, ["check", str(folder)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("hospital-") for line in lines) == 6
    assert "4.4x4.4x3.3" in result.stdout
    assert "No problems found." in result.stdout
    assert lines[-1] == "Contact sheet: contact-sheet.png"
    assert Path("contact-sheet.png").is_file()


def test_warnings_exit_with_0_and_errors_with_2(folder: Path) -> None:
    for number in range(2, 7):
        path = folder / f"hospital-a/images/case-{number:03d}.nii.gz"
        path.write_bytes((folder / "hospital-a/images/case-001.nii.gz").read_bytes())
    (folder / "manifest.csv").unlink()
    result = runner.invoke(app, ["check", str(folder), "--no-sheet"])
    assert result.exit_code == 0
    assert "5 warnings" in result.stdout
    flat = " ".join(result.stdout.split())
    assert "case-004.nii.gz and 2 more (all: --json): the same image as" in flat
    assert not Path("contact-sheet.png").exists()

    (folder / "hospital-b/images/case-001.nii.gz").write_bytes(b"broken")
    result = runner.invoke(app, ["check", str(folder), "--sheet", "here.png"])
    assert result.exit_code == 2
    assert "1 error" in result.stdout
    assert "hospital-b/images/case-001.nii.gz" in result.stdout
    assert Path("here.png").is_file()


def test_a_file_that_is_no_sheet_is_kept_and_said_before_images_are_read(folder: Path) -> None:
    Path("recipe.toml").write_text("seed = 1")
    result = runner.invoke(app, ["check", str(folder), "--sheet", "recipe.toml"])
    assert isinstance(result.exception, PolyclinicError)
    assert str(result.exception).startswith("recipe.toml: is there already and no contact sheet")
    assert result.stdout == ""
    assert Path("recipe.toml").read_text() == "seed = 1"
    assert runner.invoke(app, ["check", str(folder), "--sheet", "recipe.toml", "--no-sheet"]).exit_code == 0


def test_json_is_all_that_goes_to_stdout(folder: Path) -> None:
    (folder / "hospital-b/images/case-001.nii.gz").write_bytes(b"broken")
    result = runner.invoke(app, ["check", str(folder), "--json", "--no-sheet"])
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert len(report["sites"]) == 6
    assert [problem["site"] for problem in report["problems"]] == ["hospital-b"]
    assert report["sheet"] is None


def test_classes_that_nothing_declares_are_not_made_up(folder: Path) -> None:
    (folder / "federation.toml").unlink()
    (folder / "empty").mkdir()
    result = runner.invoke(app, ["check", str(folder), "--no-sheet"])
    assert result.exit_code == 2
    assert result.stdout.splitlines()[0].endswith("; classes 0 background, 1 class 1")
    for labels in folder.glob("*/labels"):
        shutil.rmtree(labels)
    first = runner.invoke(app, ["check", str(folder), "--no-sheet"]).stdout.splitlines()[0]
    assert first.endswith("; classes unknown")


def test_site_names_are_no_markup(folder: Path) -> None:
    (folder / "hospital-a").rename(folder / "[bold]a")
    (folder / "manifest.csv").unlink()
    assert "[bold]a" in runner.invoke(app, ["check", str(folder), "--no-sheet"]).stdout


def test_nothing_readable_still_gives_the_report(folder: Path) -> None:
    for path in folder.rglob("images/*"):
        path.write_bytes(b"broken")
    result = runner.invoke(app, ["check", str(folder)])
    assert result.exit_code == 2
    assert "6 errors" in result.stdout
    assert "Contact sheet" not in result.stdout


def test_demo_writes_a_federation_that_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    small = dataclasses.replace(DEMOS["nuclei"], size=(16, 16), cases={"hospital-a": 2, "hospital-b": 1})
    monkeypatch.setitem(DEMOS, "nuclei", small)
    for name, seed in (("a", "0"), ("b", "1")):
        result = runner.invoke(app, ["demo", "nuclei", str(tmp_path / name), "--seed", seed])
        assert result.exit_code == 0, result.output
        assert str(tmp_path / name) in result.stdout
    one, other = (tmp_path / name / "hospital-a/images/case-001-1.png" for name in "ab")
    assert one.read_bytes() != other.read_bytes()
    assert runner.invoke(app, ["check", str(tmp_path / "a"), "--no-sheet"]).exit_code == 0


def test_user_errors_come_through_as_sentences(tmp_path: Path) -> None:
    for arguments in (
        ["demo", "nucle", str(tmp_path / "x")],
        ["check", str(tmp_path / "absent")],
        ["check", "demo:nucle"],
    ):
        assert isinstance(runner.invoke(app, arguments).exception, PolyclinicError)


def test_help_names_every_demo() -> None:
    text = runner.invoke(app, ["demo", "--help"]).stdout
    assert all(name in text for name in DEMOS)


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, polyclinic.cli.data; "
        "print([m for m in ('torch', 'monai', 'numpy', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_cache_is_listed_and_emptied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.data.build_imageset import build_imageset
    from polyclinic.data.open_federation import open_federation
    from polyclinic.recipe import DataSettings

    monkeypatch.setenv("POLYCLINIC_CACHE", str(tmp_path / "cache"))
    prepared = tmp_path / "cache" / "prepared"
    assert runner.invoke(app, ["cache"]).stdout == f"{prepared}: 0 entries, 0 B. Remove all of them: --clear\n"
    federation = open_federation(folder)
    build_imageset(federation.sites["hospital-a"], federation, DataSettings())
    lines = runner.invoke(app, ["cache"]).stdout.splitlines()
    assert {line.split()[-1].partition("-")[0] for line in lines[:-1]} == {"images", "labels"}
    assert lines[-1].startswith(f"{prepared}: 2 entries, ")
    about = json.loads(runner.invoke(app, ["cache", "--json"]).stdout)
    assert len(about["entries"]) == 2
    assert about["bytes"] == sum(entry["bytes"] for entry in about["entries"]) > 1000
    (tmp_path / "elsewhere").mkdir()
    other = runner.invoke(app, ["cache", str(tmp_path / "elsewhere"), "--clear"])
    assert other.stdout == f"Removed 0 B from {tmp_path / 'elsewhere'}.\n"
    assert runner.invoke(app, ["cache", str(prepared)]).stdout.splitlines() == lines
    assert len(list(prepared.glob("*.safetensors"))) == 2
    with next(prepared.glob("labels-*")).open("rb") as used:
        shared_lock(used.fileno())
        assert runner.invoke(app, ["cache", "--clear"]).stdout.endswith("; 1 is in use and stays.\n")
    assert json.loads(runner.invoke(app, ["cache", "--clear", "--json"]).stdout)["removed"] > 0
    assert list(prepared.glob("*.safetensors")) == []


@pytest.mark.parametrize("clear", [[], ["--clear"]])
def test_a_folder_that_is_no_cache_is_left_alone(tmp_path: Path, clear: list[str]) -> None:
    model = tmp_path / "run" / "checkpoints" / "all" / "server.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"a model")
    advice = "give a folder that data.cache names, or none for that of polyclinic."
    for folder, words in {
        tmp_path / "nosuch": "no such folder",
        model: "cannot be read as a folder (Not a directory)",
        model.parent: "no folder of prepared images, as it holds server.safetensors",
        tmp_path / "run": "no folder of prepared images, as it holds checkpoints",
    }.items():
        error = runner.invoke(app, ["cache", str(folder), *clear]).exception
        assert isinstance(error, PolyclinicError)
        assert str(error) == f"{folder}: {words}; {advice}"
    assert model.read_bytes() == b"a model"
