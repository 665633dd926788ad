from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.report.page.build import Extras, build_page, check_metric
from polyclinic.report.page.pictures import read_features, read_gallery
from polyclinic.report.page.results import read_results
from polyclinic.report.statistics import grid_statistics
from report_support import HOSTILE, write_gallery, write_grid, write_run, write_study

ORDER = [
    "opening", "methods", "scores", "convergence", "cases", "costs", "pictures", "features", "problems", "exchange",
    "origin",
]  # fmt: skip


def test_sections_are_in_the_order_in_which_they_are_read(tmp_path: Path) -> None:
    results = read_results(write_gallery(write_grid(tmp_path), ("fedavg", "fedbn")))
    extras = {tmp_path: Extras(pictures=read_gallery(tmp_path), features=read_features(tmp_path))}
    page = build_page(results, "dice", extras, None)
    assert list(page.sections) == ORDER
    named = {name for html in page.sections.values() for name in page.charts if f'data-chart="{name}"' in html}
    assert named == set(page.charts), "every chart has its place"
    assert page.data["fingerprints"].keys() == page.sections.keys()


def test_stuck_runs_steps_and_ranks_stand_beside_the_scores(tmp_path: Path) -> None:
    stuck = {"stuck": {"all": {"longest": 9, "at_end": 9}}}
    results = read_results(write_grid(tmp_path, seeds=(0,), steps=120, **stuck))
    statistics = grid_statistics(tmp_path, "dice", "fedavg")
    html = build_page(results, "dice", {tmp_path: Extras(statistics)}, None).sections["scores"]
    assert "Stuck at background: fedavg seed 0 (9 validated rounds, to the end), fedbn seed 0" in html
    assert "Optimiser steps of all sites together: 120 for every method." in html
    assert html.count('<img class="card" src="data:image/svg+xml;base64,') == 1
    assert 'alt="Critical-difference diagram. Mean ranks over 2 sites, 1 is best: fedprox 1.00' in html
    plain = build_page(read_results(write_grid(tmp_path / "plain", ("a", "b"))), "dice", {}, None).sections["scores"]
    assert not any(word in plain for word in ("Stuck", "Optimiser", "<img"))


def test_a_page_without_pictures_says_why(tmp_path: Path) -> None:
    page = build_page(read_results(write_run(tmp_path)), "dice", {tmp_path: Extras(no_pictures="they are far.")}, None)
    assert "There are no pictures here: they are far." in page.sections["pictures"]
    assert not {"methods", "features"} & page.sections.keys()


def test_a_study_has_a_chapter_for_each_value(tmp_path: Path) -> None:
    page = build_page(read_results(write_study(tmp_path)), "dice", {}, None)
    assert list(page.sections)[:4] == ["opening", "study", "methods", "scores-0"]
    assert "scores-1" in page.sections
    assert 'data-chapter="1"' in page.sections["scores-1"]


def test_with_many_methods_the_reference_and_the_best_are_shown_first(tmp_path: Path) -> None:
    methods = [f"m{number}" for number in range(12)]
    html = build_page(read_results(write_grid(tmp_path, methods, seeds=(0,))), "dice", {}, None).sections["methods"]
    shown = [
        name
        for name in methods
        if f'aria-pressed="true"><i class="swatch" style="--own: var(--m{int(name[1:]) % 8})"></i>{name}<' in html
    ]
    assert shown == ["m0", *methods[-7:]]


def test_names_are_escaped_wherever_they_stand(tmp_path: Path) -> None:
    results = read_results(write_grid(tmp_path, ("fedavg", HOSTILE), seeds=(0,), sites=(HOSTILE, "south")))
    page = build_page(results, "dice", {}, None)
    for html in page.sections.values():
        assert "<img src=x" not in html
        assert "</script" not in html
    assert "&lt;img src=x" in page.sections["scores"]
    assert "<img src=x" not in str(page.charts)


def test_the_metric_is_one_that_was_measured(tmp_path: Path) -> None:
    results = read_results(write_grid(tmp_path))
    assert [check_metric(results, name) for name in (None, "hd95")] == ["dice", "hd95"]
    with pytest.raises(PolyclinicError, match="--metric iou: not measured here; there are dice, hd95"):
        check_metric(results, "iou")
