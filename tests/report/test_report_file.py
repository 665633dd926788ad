from __future__ import annotations

import os
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.report.page.results import read_results
from polyclinic.report.report_file import all_extras, write_report
from report_support import write_gallery, write_grid, write_run, write_study


def test_the_headline_is_that_of_the_table(tmp_path: Path) -> None:
    results = read_results(write_grid(tmp_path), "fedbn")
    written = write_report(results, tmp_path / "report.html")
    (grid,) = written.headline["comparisons"]
    assert (written.headline["metric"], grid["reference"]) == ("dice", "fedbn")
    assert grid["methods"]["fedprox"]["average"] == pytest.approx(0.685)
    assert [sentence.split(":")[0] for sentence in grid["sentences"]] == [
        "fedavg against fedbn",
        "fedprox against fedbn",
    ]
    assert all(path.parent == tmp_path / "figures" for path in written.figures)


def test_patients_images_are_for_the_owner_alone(tmp_path: Path) -> None:
    os.umask(os.umask(0o022))
    results = read_results(write_gallery(write_run(tmp_path), ("fedavg",)))
    shown = write_report(results, tmp_path / "report.html")
    assert shown.headline["pictures"]
    assert shown.report.stat().st_mode & 0o077 == 0
    hidden = write_report(results, tmp_path / "without.html", no_pictures="not wanted.")
    assert not hidden.headline["pictures"]
    assert "data:image/png" not in hidden.report.read_text()


def test_a_report_replaces_a_report_and_nothing_else(tmp_path: Path) -> None:
    results = read_results(write_run(tmp_path / "run"))
    out = tmp_path / "out.html"
    for _ in range(2):
        write_report(results, out)
    out.write_text("<html>my thesis</html>")
    with pytest.raises(PolyclinicError, match="no report of polyclinic"):
        write_report(results, out)
    assert out.read_text() == "<html>my thesis</html>"
    with pytest.raises(PolyclinicError, match="is a folder"):
        write_report(results, tmp_path)


def test_the_pictures_of_a_study_are_of_its_first_comparison(tmp_path: Path) -> None:
    results = read_results(write_gallery(write_study(tmp_path), ("fedavg",)))
    first, second = all_extras(results, "dice").values()
    assert first.pictures is not None
    assert (second.pictures, second.no_pictures) == (None, "they are of data.labelled = 5.")
    assert first.statistics is not None
