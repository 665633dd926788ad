"""The diagram of ranks: drawn for any names, the same bytes for the same ranks, and gone when it says nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from polyclinic.evaluation.ranks import critical_difference
from polyclinic.report.critical_difference import FILES, draw, svg_of, write_diagrams
from polyclinic.report.site_ranks import Ranks

RANKS = Ranks(
    {"best": 1.2, "$\\frac{x$ <script> ]]>": 2.1, "x" * 90: 3.0, "last": 3.7}, tuple("abcdef"), 0.01,
    critical_difference(4, 6), "",
)  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def test_it_is_drawn_twice_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        write_diagrams(folder, RANKS)
    for name in FILES:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (first / FILES[0]).read_bytes().startswith(b"%PDF")
    paths = ElementTree.parse(first / FILES[1]).iter(f"{SVG}path")
    bars = [path for path in paths if "stroke-width: 3" in path.get("style", "")]
    assert len(bars) == 2, "best to the third, and the second to the last: two groups that are alike"


def test_in_memory_it_is_the_same_picture_without_any_text_of_others(tmp_path: Path) -> None:
    draw(RANKS, [tmp_path / "ranks.svg"])
    assert svg_of(RANKS) == (tmp_path / "ranks.svg").read_bytes()
    names = {element.tag for element in ElementTree.fromstring(svg_of(RANKS)).iter() if element.tag.startswith(SVG)}
    assert not names & {f"{SVG}{name}" for name in ("script", "text", "a", "foreignObject", "image")}


def test_letters_that_the_font_has_not_are_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(replace(RANKS, mean_ranks={"中心": 1.0, "b": 2.0, "c": 3.0}), [tmp_path / "ranks.svg"])
    ElementTree.parse(tmp_path / "ranks.svg")


def test_without_a_test_of_ranks_an_old_diagram_goes(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).touch()
    write_diagrams(tmp_path, Ranks({"x": 1.0, "y": 2.0}, ("a",), None, None, ""))
    assert list(tmp_path.iterdir()) == []
    write_diagrams(tmp_path, None)
