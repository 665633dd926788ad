"""What was measured, as data."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.data.federation_traits import FederationTraits
from polyclinic.preview.evidence import (
    FILE,
    SETTINGS,
    MeasuredRow,
    MeasuredTable,
    distance,
    load_evidence,
    named_settings,
    settings_of,
)
from polyclinic.recipe.files import make_recipe

REAL = Path(__file__).resolve().parents[2] / "benchmarks" / "real"
VESSELS = FederationTraits(4, 20, 42, 1.0, 2, 1, 0.086, 2.5, 1.08, "unclear", (256, 256), 1.0)


def test_the_file_follows_from_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every number is computed again from the cases of the recorded runs; traits need images and are taken over."""
    monkeypatch.syspath_prepend(str(REAL))
    for name in [
        one for one in sys.modules if one.split(".")[0] in ("pages", "page", "grids", "sections", "records", "evidence")
    ]:
        del sys.modules[name]
    import evidence

    written = json.loads(FILE.read_text(encoding="utf-8"))
    traits = {entry["federation"]: entry["traits"] for entry in written["tables"]}
    again = {"tables": evidence.tables(tmp_path, traits), "costs": evidence.costs()}
    for entry in again["tables"]:
        # A table that is begun has fewer seeds than its grid asks for.
        assert f"over {entry['seeds']} seeds" in (REAL / Path(entry["page"]).name).read_text(encoding="utf-8")
    assert json.loads(json.dumps(again)) == written


def test_the_packaged_file_is_read_whole() -> None:
    known = load_evidence()
    assert known.costs["fedavg" if "fedavg" in known.costs else "fedprox"] == pytest.approx(1, abs=0.1)
    for table in known.tables:
        assert table.row(table.reference) is not None
        assert (REAL / Path(table.page).name).exists()
        assert table.traits.sites > 1
        assert table.settings["data.intensity"] == table.intensity


def test_federations_of_one_kind_are_near_and_volumes_are_no_pictures() -> None:
    assert distance(VESSELS, VESSELS) == 0
    assert distance(VESSELS, replace(VESSELS, width=5.0)) == pytest.approx(1)
    assert distance(VESSELS, replace(VESSELS, shift=1.58)) == pytest.approx(1)
    assert distance(VESSELS, replace(VESSELS, foreground=0.086 * 4)) == pytest.approx(1)
    assert distance(VESSELS, replace(VESSELS, polarity="mixed")) == pytest.approx(1)
    assert distance(VESSELS, replace(VESSELS, dims=3)) == math.inf
    assert distance(VESSELS, replace(VESSELS, width=None, shift=None, foreground=None)) == 0


@given(st.floats(1, 100), st.floats(0, 5), st.floats(1e-4, 0.9))
def test_distances_are_the_same_in_both_directions(width: float, shift: float, foreground: float) -> None:
    other = replace(VESSELS, width=width, shift=shift, foreground=foreground)
    assert distance(VESSELS, other) == pytest.approx(distance(other, VESSELS))


def test_the_best_gain_is_one_that_was_shown() -> None:
    rows = (
        MeasuredRow("fedavg", 70.0, None, None, None, ""),
        MeasuredRow("large", 75.0, 5.0, -1.0, 11.0, "not shown"),
        MeasuredRow("shown", 72.0, 2.0, 1.0, 3.0, "better"),
        MeasuredRow("small", 71.0, 1.0, 0.5, 1.5, "better"),
    )
    table = MeasuredTable("v", "V", "p.md", "own-test", None, "zero-one", "fedavg", 3, 26, VESSELS, rows)
    best = table.best_gain()
    assert best is not None
    assert (best.method, best.against) == ("shown", "+2.0 [1.0, 3.0]")
    assert replace(table, rows=rows[:2]).best_gain() is None
    assert rows[0].against == ""


def test_differences_near_zero_have_no_minus() -> None:
    assert MeasuredRow("fsf3a", 89.1, -0.01, -0.42, 0.04, "not shown").against == "+0.0 [-0.4, 0.0]"
    assert MeasuredRow("fsf3a", 89.1, -0.06, None, None, "").against == "-0.1"


def test_settings_are_those_of_the_recipe() -> None:
    recipe = make_recipe({"federation": "any", "training": {"rounds": 42, "loss": "dice"}})
    settings = settings_of(recipe)
    assert tuple(settings) == SETTINGS
    assert (settings["training.rounds"], settings["training.loss"]) == (42, "dice")
    assert named_settings({"data.intensity": "site", "training.rounds": 30}) == (
        "data.intensity = site, training.rounds = 30"
    )


def test_a_method_is_found_by_what_it_consists_of() -> None:
    rows = tuple(
        MeasuredRow(method, 70.0, None, None, None, "")
        for method in ("fedavg", "pathfl+cse(probability=1)", "pathfl+cse(probability=0.25)")
    )
    table = MeasuredTable("v", "V", "p.md", "own-test", None, "site", "fedavg", 3, 26, VESSELS, rows)
    assert table.row("pathfl") is rows[2], "the default of today, under the name that it was measured by"
    assert table.row("fedavg+cse(probability=1)+afa") is None
    assert table.row("fedbcs") is None
