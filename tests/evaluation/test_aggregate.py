from __future__ import annotations

import doctest
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.evaluation import aggregate
from polyclinic.evaluation.aggregate import (
    Row,
    case_values,
    for_json,
    named_case_values,
    rows_from_csv,
    rows_to_csv,
    summarise,
)

NAN = math.nan


def row(site: str, case: str, image: str, name: str, metric: str, value: float) -> Row:
    return {"site": site, "case": case, "image": image, "class": name, "metric": metric, "value": value}


def test_example() -> None:
    result = doctest.testmod(aggregate)
    assert result.attempted
    assert not result.failed


def test_means_over_classes_then_images_then_cases_then_sites() -> None:
    rows = [
        row("a", "1", "x", "nucleus", "dice", 1.0),
        row("a", "1", "x", "wall", "dice", 0.0),  # image 0.5
        row("a", "1", "y", "nucleus", "dice", 0.25),
        row("a", "1", "y", "wall", "dice", 0.25),  # image 0.25, case 0.375
        row("a", "2", "z", "nucleus", "dice", 0.75),
        row("a", "2", "z", "wall", "dice", NAN),  # case 0.75
        row("b", "1", "x", "nucleus", "dice", 0.5),
        row("b", "1", "x", "wall", "dice", 1.0),
    ]
    sites, average = summarise(rows)
    assert list(sites["a"]) == ["dice", "dice/nucleus", "dice/wall"]
    assert sites["a"] == pytest.approx(
        {"dice": (0.375 + 0.75) / 2, "dice/nucleus": (0.625 + 0.75) / 2, "dice/wall": 0.125}
    )
    assert sites["b"] == {"dice": 0.75, "dice/nucleus": 0.5, "dice/wall": 1.0}
    assert average["dice"] == pytest.approx((0.5625 + 0.75) / 2)


def test_one_foreground_class_has_no_entry_of_its_own_and_metrics_stay_apart() -> None:
    rows = [row("a", "1", "1", "disc", "dice", 0.5), row("a", "1", "1", "disc", "hd95", 4.0)]
    assert summarise(rows) == ({"a": {"dice": 0.5, "hd95": 4.0}}, {"dice": 0.5, "hd95": 4.0})


def test_values_of_cases_have_their_names() -> None:
    rows = [row("a", "2", "x", "disc", "dice", 0.5), row("a", "1", "y", "disc", "dice", 0.25)]
    rows += [row("a", "2", "z", "disc", "dice", 1.0)]
    assert named_case_values(rows) == {"dice": {"2": 0.75, "1": 0.25}}
    assert case_values(rows) == {"dice": [0.75, 0.25]}


def test_nan_sites_do_not_enter_the_average() -> None:
    rows = [row("a", "1", "1", "disc", "hd95", NAN), row("b", "1", "1", "disc", "hd95", 3.0)]
    sites, average = summarise(rows)
    assert math.isnan(sites["a"]["hd95"])
    assert average == {"hd95": 3.0}
    assert json.dumps(for_json(sites["a"]), allow_nan=False) == '{"hd95": null}'
    assert math.isnan(summarise(rows[:1])[1]["hd95"])
    assert summarise([]) == ({}, {})


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from("123"),
            st.sampled_from("xy"),
            st.sampled_from(["cup", "disc"]),
            st.floats(0, 1) | st.just(NAN),
        ),
        min_size=1,
        unique_by=lambda entry: entry[:4],
    )
)
def test_equals_numpy_over_a_dense_table(entries: list[tuple[str, str, str, str, float]]) -> None:
    table = np.full((2, 3, 2, 2), NAN)
    for site, case, image, name, value in entries:
        table["ab".index(site), "123".index(case), "xy".index(image), ["cup", "disc"].index(name)] = value

    def nanmean(values: np.ndarray, axis: int) -> np.ndarray:
        count = (~np.isnan(values)).sum(axis)
        total = np.nansum(values, axis)
        return np.divide(total, count, out=np.full(total.shape, NAN), where=count > 0)

    expected = nanmean(nanmean(nanmean(table, 3), 2), 1)
    sites, average = summarise([row(*entry[:4], "dice", entry[4]) for entry in entries])
    for site, values in sites.items():
        assert values["dice"] == pytest.approx(expected["ab".index(site)], nan_ok=True)
    assert average["dice"] == pytest.approx(float(nanmean(expected, 0)), nan_ok=True)


def test_csv_gives_back_every_bit(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 1 / 3, 5e-324, 1e300, -0.0, math.inf, NAN, float(np.float32(0.7))]
    rows = [
        row("site, with comma", f'"{index}"', "ünï\ncode", "wall", "dice", value) for index, value in enumerate(values)
    ]
    rows.append(row("b", "1", "1", "wall", "dice", np.float64(0.3)))
    path = tmp_path / "deep" / "cases.csv"
    rows_to_csv(path, rows)
    back = rows_from_csv(path)
    assert [repr(float(entry["value"])) for entry in back] == [repr(float(entry["value"])) for entry in rows]
    assert [list(entry.values())[:5] for entry in back] == [list(entry.values())[:5] for entry in rows]
    assert path.read_text().startswith("site,case,image,class,metric,model,value\n")


def test_parts_have_a_column_where_rows_name_them(tmp_path: Path) -> None:
    rows = [{**row("a", "1", "1", "wall", "dice", 0.5), "part": part} for part in ("repeat-1", "repeat-2")]
    rows_to_csv(tmp_path / "cases.csv", rows)
    assert rows_from_csv(tmp_path / "cases.csv") == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first row"),
        ("site,case\na,b\n", "first row"),
        ("site,case,image,class,metric,model,value\na,1,1,wall,dice,,high\n", "row 2"),
        ("site,case,image,class,metric,model,value\na,1,1,wall,dice,,1\na,1,1\n", "row 3"),
        ("site,case,image,class,metric,model,value\na,1,1,wall,dice,,1,repeat-1\n", "row 2"),
        ("site,case,image,class,metric,model,value,part\na,1,1,wall,dice,,1\n", "row 2"),
    ],
)
def test_a_damaged_file_gets_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cases.csv"
    path.write_text(text)
    with pytest.raises(PolyclinicError, match=rf"cases.csv: .*{message}.*restore"):
        rows_from_csv(path)


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"none\.csv: cannot be read"):
        rows_from_csv(tmp_path / "none.csv")
