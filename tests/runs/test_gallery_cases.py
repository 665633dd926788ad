"""Which cases a gallery shows, against ranks written out by hand."""

from __future__ import annotations

from math import nan

import pytest

from polyclinic.evaluation.aggregate import Row
from polyclinic.runs.gallery_cases import PickedCase, agree, item_name, pick_cases, rows_of_image


def row(case: str, value: float, image: str = "", site: str = "a", name: str = "disc", **more: str) -> Row:
    found: Row = {
        "site": site, "case": case, "image": image or case, "class": name, "metric": "dice", "value": value
    }  # fmt: skip
    return {**found, **more}  # type: ignore[typeddict-item]


def ranks(picked: list[PickedCase]) -> dict[str, str]:
    return {one.rank: one.case for one in picked}


def test_best_median_and_worst_of_each_site() -> None:
    rows = [row(case, value) for case, value in zip("pqrst", (0.5, 0.9, 0.1, 0.7, 0.6), strict=True)]
    rows += [row("u", 0.2, site="b"), row("v", 0.8, site="b"), row("w", 0.3, site="c"), row("x", nan, site="c")]
    picked = pick_cases({"all": rows}, "dice", "higher")
    assert ranks(picked["a"]) == {"best": "q", "median": "t", "worst": "r"}
    assert ranks(picked["b"]) == {"best": "v", "worst": "u"}
    assert ranks(picked["c"]) == {"median": "w"}


def test_of_a_distance_the_smallest_is_the_best() -> None:
    rows = [row("p", 3.0), row("q", 1.0), row("r", 2.0)]
    assert ranks(pick_cases({"all": rows}, "dice", "lower")["a"]) == {"best": "q", "median": "r", "worst": "p"}


def test_a_site_without_values_has_no_case() -> None:
    assert pick_cases({"all": [row("p", nan)]}, "dice", "higher") == {"a": []}


def test_equal_cases_come_by_name() -> None:
    rows = [row(case, 0.5) for case in ("c", "a", "b")]
    assert ranks(pick_cases({"all": rows}, "dice", "higher")["a"]) == {"best": "a", "median": "b", "worst": "c"}


def test_the_value_of_a_case_is_the_mean_over_images_of_the_mean_over_classes() -> None:
    # The mean over all four values would be 0.55 and make q the better one.
    p = [row("p", 0.2, "p1"), row("p", 0.4, "p1", name="core"), row("p", 0.9, "p2"), row("p", nan, "p2", name="core")]
    picked = pick_cases({"all": [*p, row("q", 0.58)]}, "dice", "higher")["a"]
    assert ranks(picked) == {"best": "p", "worst": "q"}
    assert picked[0].value == pytest.approx((0.3 + 0.9) / 2)


def test_the_image_that_stands_for_a_case_fits_its_rank() -> None:
    rows = [row(case, value, f"{case}{number}") for case, values in
            {"p": (0.9, 1.0, 0.8), "q": (0.5, 0.1, 0.75), "r": (0.1, 0.3, 0.2)}.items()
            for number, value in enumerate(values)]  # fmt: skip
    picked = pick_cases({"all": rows}, "dice", "higher")["a"]
    assert [(one.rank, one.image) for one in picked] == [("best", "p1"), ("median", "q0"), ("worst", "r0")]


def test_a_case_of_repeated_splits_counts_in_the_first_part_that_tests_it() -> None:
    rows = {"repeat-1": [row("p", 0.4)], "repeat-2": [row("p", 0.9), row("q", 0.6)]}
    picked = pick_cases(rows, "dice", "higher")["a"]
    assert [(one.case, one.part, one.value) for one in picked] == [("q", "repeat-2", 0.6), ("p", "repeat-1", 0.4)]


def test_slices_that_were_scored_one_by_one_belong_to_their_volume() -> None:
    rows = [row("p", value, f"scan[{number}]") for number, value in enumerate((0.2, 0.4))]
    (picked,) = pick_cases({"all": rows}, "dice", "higher", by_slice=True)["a"]
    assert (picked.image, picked.value) == ("scan", pytest.approx(0.3))
    assert rows_of_image([*rows, row("p", 0.9, "other[0]")], picked, "dice", by_slice=True) == rows
    assert item_name("a[1]", by_slice=False) == "a[1]"  # a file may be called so
    assert item_name("a[x][12]", by_slice=True) == "a[x]"


def test_of_several_sites_models_the_most_typical_one_is_shown() -> None:
    rows = [row("p", value, model=model) for model, value in (("b", 0.1), ("c", 0.55), ("d", 0.9))]
    picked = PickedCase("best", "a", "p", "p", "without-a", 0.5)
    assert [one["model"] for one in rows_of_image(rows, picked, "dice")] == ["c"]
    assert rows_of_image([], picked, "dice") == []


def test_values_agree_up_to_a_voxel_that_changes_sides() -> None:
    tested = [row("p", 0.8), row("p", nan, name="core")]
    assert agree(tested, [row("p", 0.8004), row("p", nan, name="core")])
    assert not agree(tested, [row("p", 0.79), row("p", nan, name="core")])
    assert not agree(tested, [row("p", 0.8), row("p", 0.0, name="core")])
    assert not agree(tested, [row("p", 0.8)])
