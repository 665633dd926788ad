"""``polyclinic report``: real runs, and folders that are none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import call

Finished = Callable[..., Path]


@pytest.fixture(scope="module")
def run(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished run: a report writes into its folder."""
    return Path(shutil.copytree(finished(), tmp_path_factory.mktemp("reported") / "run"))


def test_a_run_gets_its_page_its_figures_and_its_pictures(run: Path) -> None:
    done = call("report", run, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    summary = json.loads((run / "summary.json").read_text())
    assert told["report"] == str(run / "report.html")
    assert told["comparisons"][0]["methods"]["fedavg"]["average"] == summary["average"]["dice"]
    assert (told["kind"], told["pictures"], len(told["figures"])) == ("run", True, 6)
    text = (run / "report.html").read_text()
    assert text.count("data:image/png;base64") > 3
    assert "trained weights" in text, "what was declared"


def test_without_pictures_it_says_so_in_a_sentence(run: Path, tmp_path: Path) -> None:
    done = call("report", run, "--no-pictures", "--out", tmp_path / "plain.html")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1].startswith(f"Report: {tmp_path / 'plain.html'}; 6 figures: ")
    assert "made without them" in (tmp_path / "plain.html").read_text()


def test_a_run_whose_images_are_gone_gets_everything_else(run: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(run, tmp_path / "moved"))
    shutil.rmtree(moved / "gallery", ignore_errors=True)  # there where another test has asked for a report
    recipe = moved / "recipe.toml"
    lines = [
        f'federation = "{tmp_path / "gone"}"' if x.startswith("federation") else x
        for x in recipe.read_text().splitlines()
    ]
    recipe.write_text("\n".join(lines) + "\n")
    done = call("report", moved)
    assert done.code == 0, done.err
    assert "no picture" in done.err
    assert "There are no pictures here" in (moved / "report.html").read_text()


def test_bad_input_gets_a_sentence(run: Path, tmp_path: Path) -> None:
    def wrong(*arguments: object) -> str:
        done = call("report", *arguments)
        assert (done.code, done.out) == (2, ""), done
        return done.err

    assert "no such folder" in wrong(tmp_path / "none")
    assert "holds no run" in wrong(tmp_path)
    assert "--metric nonsense: not measured here" in wrong(run, "--metric", "nonsense", "--no-pictures")
    assert "leave it out" in wrong(run, "--reference", "fedbn")
    (tmp_path / "thesis.html").write_text("mine")
    assert "choose another name" in wrong(run, "--out", tmp_path / "thesis.html")
    assert (tmp_path / "thesis.html").read_text() == "mine"
