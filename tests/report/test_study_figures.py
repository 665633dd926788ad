"""The pictures of a study: what is drawn where, from numbers by hand."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from polyclinic.report.study import StudyTable
from polyclinic.report.study_figures import draw_study, heat_maps, in_order, lines
from polyclinic.report.tables import Comparison


def comparison(method: str, *scores: float | None, metric: str = "dice") -> Comparison:
    return Comparison(metric, (method,), ("a",), {method: {"a": list(scores), "average": list(scores)}})


def study(tables: dict[str, Comparison], key: str = "data.labelled", metric: str = "dice") -> StudyTable:
    return StudyTable(key, metric, next(iter(tables.values())).methods, tuple(tables), tables)


def pairs(*methods: str) -> StudyTable:
    """Means 0.1 to 0.4 over two by two values, given from high to low; the last is missing."""
    means: dict[str, float | None] = {"2, b": 0.1, "2, a": 0.2, "1, b": 0.3, "1, a": None}
    tables = {
        value: Comparison("dice", methods, ("s",), {m: {"s": [mean], "average": [mean]} for m in methods})
        for value, mean in means.items()
    }
    return StudyTable("x, y", "dice", methods, tuple(means), tables, axes={"x": ("2", "1"), "y": ("b", "a")})


def test_the_line_goes_from_low_to_high_and_a_gap_stays_one() -> None:
    table = study({"16": comparison("fedavg", 0.9), "4": comparison("fedavg", 0.5), "8": comparison("fedavg", None)})
    (container,) = lines(table).axes[0].containers
    line: Any = container[0]
    assert list(line.get_xdata()) == [4, 8, 16]
    assert list(line.get_ydata()) == pytest.approx([50, nan, 90], nan_ok=True)


def test_one_seed_has_no_bars_and_a_value_with_two_has_its_own() -> None:
    one = study({"1": comparison("fedavg", 0.5), "2": comparison("fedavg", 0.6)})
    assert not lines(one).axes[0].containers[0].has_yerr
    two = study({"1": comparison("fedavg", 0.5, 0.7), "2": comparison("fedavg", 0.6, None)})
    (container,) = lines(two).axes[0].containers
    assert container.has_yerr
    (bars,) = container[2]
    drawn, empty = bars.get_segments()
    assert drawn[1][1] - drawn[0][1] == pytest.approx(2 * 14.1421356)
    assert len(empty) == 0


def test_words_stand_side_by_side() -> None:
    tables = {word: comparison("fedavg", 0.5, 0.7, metric="hd95") for word in ("constant", "cosine")}
    (axes,) = lines(study(tables, "training.schedule", "hd95")).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["constant", "cosine"]
    assert axes.get_ylabel() == "hd95"
    assert in_order(("10", "9", "1e2")) == ["9", "10", "1e2"]
    assert in_order(("b", "a", "1")) == ["b", "a", "1"]


def test_a_heat_map_has_the_first_key_downwards_and_the_second_across() -> None:
    figure = heat_maps(pairs("fedavg", "fedbn"), ("fedbn",))
    panel, _ = figure.axes
    assert panel.images[0].get_array().tolist() == [[pytest.approx(30), None], [pytest.approx(10), pytest.approx(20)]]
    assert [text.get_text() for text in panel.get_yticklabels()] == ["1", "2"]
    assert [text.get_text() for text in panel.get_xticklabels()] == ["b", "a"]
    assert (panel.get_ylabel(), panel.get_xlabel(), panel.get_title()) == ("x", "y", "fedbn")
    written = {text.get_text(): text.get_color() for text in panel.texts}
    assert written == {"30.00": "black", "-": "black", "10.00": "white", "20.00": "black"}


def test_a_picture_for_all_methods_and_one_for_each(tmp_path: Path) -> None:
    table = pairs("fedavg", "fedbn", "moon", "fedavg+proximal(mu=$1$)")
    assert len(heat_maps(table, table.methods).axes) == 4 + 1, "two rows without empty places, and the colours"
    two, one = tmp_path / "two", tmp_path / "one"
    draw_study(pairs("fedavg", "fedavg+proximal(mu=$1$)"), two)
    stems, suffixes = ("study", "study-fedavg", "study-fedavg+proximal(mu=-1-)"), ("png", "pdf", "svg")
    assert {path.name for path in two.iterdir()} == {f"{stem}.{suffix}" for stem in stems for suffix in suffixes}
    draw_study(pairs("$1$"), one)
    assert {path.name for path in one.iterdir()} == {f"study.{suffix}" for suffix in suffixes}
    with Image.open(two / "study.png") as picture:
        assert picture.width > 400
    assert (two / "study.pdf").read_bytes().startswith(b"%PDF-")
    assert ElementTree.parse(two / "study.svg").getroot().tag.endswith("svg")
    before = {path: path.read_bytes() for path in one.iterdir()}
    draw_study(pairs("$1$"), one)
    assert before == {path: path.read_bytes() for path in one.iterdir()}, "the same study gives the same files"
