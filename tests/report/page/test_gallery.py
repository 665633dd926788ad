from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.report.page.gallery import gallery_context
from polyclinic.report.page.pictures import read_gallery
from polyclinic.report.page.results import read_results
from report_support import write_gallery, write_grid


def test_a_case_has_a_tile_for_each_method_and_its_slices_are_in_the_store(tmp_path: Path) -> None:
    methods = ("fedavg", "fedbn", "fedprox")
    (grid,) = read_results(write_gallery(write_grid(tmp_path, seeds=(0,)), methods[1:])).grids
    store: dict[str, Any] = {"cases": [], "files": {}}
    gallery = gallery_context(store, read_gallery(tmp_path), grid)["gallery"]
    case = gallery["sites"][0]["cases"][2]
    assert (case["rank"], case["slices"], case["first"], case["index"], case["small"]) == ("worst", 3, 1, 11, True)
    assert [(tile["method"], tile["index"], tile["score"]) for tile in case["tiles"]] == [
        ("fedbn", 1, "75.00"),
        ("fedprox", 2, "75.00"),
    ]
    assert store["cases"][case["number"]]["slices"][2] == {
        "index": 12,
        "image": "slice2.png",
        "truth": "mask.png",
        "predictions": ["mask.png", "mask.png"],
    }
    assert [(tile["model"], tile["differs"]) for tile in case["tiles"]] == [("", False)] * 2
    assert gallery["skipped"] == ["No picture at west: it is far away."]
    assert gallery_context(store, None, grid) == {"gallery": None}


def test_a_tile_says_whose_model_it_is_and_that_it_is_not_what_was_tested(tmp_path: Path) -> None:
    (grid,) = read_results(write_gallery(write_grid(tmp_path, seeds=(0,)), ("fedavg", "fedbn"))).grids
    pictures = read_gallery(tmp_path)
    assert pictures is not None
    for case in pictures.gallery.sites["north"]:
        case.models["fedbn"] = "south"
        case.differs.append("fedavg")
    gallery = gallery_context({"cases": [], "files": {}}, pictures, grid)["gallery"]
    first, second = gallery["sites"][0]["cases"][0]["tiles"]
    assert (first["model"], first["differs"], second["model"], second["differs"]) == ("", True, "south", False)
