"""FGASL as a whole, and the rows of its ablation (the paper's Table 5)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mixed_sites import mixed_server
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from support import Keeper, tiny_recipe, tiny_task

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "methods" / "fgasl.md"
BASE = "fixmatch(threshold=0.7,dice=true)"

# GAA, DR, PIA of each row. Without GAA the server is FedAvg's, without DR the site is FixMatch's.
ROWS = {
    BASE: (False, False, False),
    f"{BASE}+gaa": (True, False, False),
    "fgasl-gaa-perturbation_invariance": (False, True, False),
    f"{BASE}+perturbation_invariance": (False, False, True),
    "fgasl-perturbation_invariance": (True, True, False),
    f"fgasl-dual_teacher+{BASE}": (True, False, True),
    "fgasl-gaa": (False, True, True),
    "fgasl": (True, True, True),
}


@pytest.mark.parametrize("expression", ROWS)
def test_a_row_of_table_5_is_what_it_says(expression: str, tmp_path: Path) -> None:
    gaa, dual_teacher, alignment = ROWS[expression]
    method = parse_method(expression)
    workspace = build_workspace(tiny_recipe(expression), tiny_task())
    built = {component.name: component.settings for component in workspace.components}
    expected = {
        "gaa" if gaa else "weighted_mean",
        "dual_teacher" if dual_teacher else "fixmatch",
        *(["perturbation_invariance"] if alignment else []),
    }
    assert built.keys() == expected
    assert method.aggregator == ("gaa" if gaa else "weighted_mean")
    if not gaa:
        assert built["weighted_mean"].weighting == "samples"
    if not dual_teacher:
        assert (built["fixmatch"].threshold, built["fixmatch"].dice) == (0.7, True)
    keeper = Keeper()
    recipe = tiny_recipe(expression, training={"rounds": 1, "local_epochs": 1})
    mixed_server(tmp_path, recipe, {"north": (3, 4), "south": (2, 3)}, observer=keeper).fit()
    terms = {"segmentation", *(expected - {"gaa", "weighted_mean"})}
    assert all(losses.keys() == terms for losses in keeper.events[0]["losses"].values())
    assert set(keeper.events[0]["shared_up"]) == ({"gaa"} if gaa else set())


def test_the_rows_are_all_eight_and_the_page_names_them() -> None:
    assert len(set(ROWS.values())) == 8
    table = re.findall(r"^\| `([^`]+)` \| (x|) ?\| (x|) ?\| (x|) ?\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {row[0]: tuple(bool(mark) for mark in row[1:]) for row in table} == ROWS


def test_defaults_are_those_of_the_papers_cardiac_task_but_for_the_weight_of_pseudo_labels() -> None:
    built = {c.name: c.settings for c in build_workspace(tiny_recipe("fgasl"), tiny_task()).components}
    dual, alignment = built["dual_teacher"], built["perturbation_invariance"]
    assert (dual.weight, dual.ema, dual.smoothing, dual.delta_start, dual.delta_end) == (0.1, 0.99, 0.9, 0.15, 0.3)
    assert (alignment.weight, alignment.probability, alignment.perturbation) == (0.3, 0.3, "dropout")
    assert (built["gaa"].rule, built["gaa"].pace, built["gaa"].least) == ("paper", None, 0)
