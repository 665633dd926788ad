"""One budget: a search tries different methods, as many for each, and the published settings are among them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.methods.expression import parse_method, settled_parts

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# Where defaults are other than published; other methods have the published ones as defaults.
PUBLISHED = {
    "fedbcs": "fedbcs(anchors=all,tau=0.4,weight=1)",
    "fgasl": "fgasl+dual_teacher(weight=1)",
    "pathfl": "pathfl+cse(probability=1)",
}


@pytest.fixture
def tuning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("tuning", None)
    import tuning

    return tuning


def searches(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, tuple[str, ...]]]:
    """By page of benchmarks/real and by search: what is tried."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "real"))
    for name in [one for one in sys.modules if one.split(".")[0] in ("pages", "page", "grids", "sections", "records")]:
        del sys.modules[name]
    import grids
    import pages

    found = {
        name: {grid.name: grid.methods for grid in one.grids if isinstance(grid, grids.Search)}
        for name, one in pages.PAGES.items()
    }
    return {name: tried for name, tried in found.items() if tried}


def contents(expression: str) -> str:
    """What a method consists of, whatever it is called."""
    return json.dumps(settled_parts(parse_method(expression)), sort_keys=True)


def base(expression: str) -> str:
    """The name of the method that an expression is a setting of."""
    return expression.split("+")[0].split("(")[0]


def published(method: str) -> str:
    """A method as it was published."""
    return PUBLISHED.get(method, method)


def named(expression: str) -> set[tuple[str, str]]:
    """The settings that an expression gives, with their components."""
    return {(part.component, key) for part in parse_method(expression).parts for key in part.settings}


def test_every_method_has_as_many_different_tries_the_published_one_first(tuning: ModuleType) -> None:
    assert len({float(rate) for rate in tuning.LEARNING_RATES}) == tuning.BUDGET
    assert set(PUBLISHED) < set(tuning.SETTINGS)
    for method in tuning.SETTINGS:
        tried = tuning.expressions(method)
        assert len({contents(one) for one in tried}) == len(tried) == tuning.BUDGET, method
        assert contents(tried[0]) == contents(published(method)), method


def test_all_tries_of_a_method_name_the_same_settings(tuning: ModuleType) -> None:
    """So that a change of the defaults moves no row."""
    for method in tuning.SETTINGS:
        first, *others = (named(one) for one in tuning.expressions(method))
        assert first, method
        assert all(keys == first for keys in others), method


def test_every_search_of_a_page_tries_different_methods_and_as_many(
    tuning: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a page searches is also named in all tries here, whose defaults it may change."""
    pages = searches(monkeypatch)
    assert set(pages) == {"fedbcs", "fgasl", "pathfl"}
    for page, tries in pages.items():
        assert len({len(tried) for tried in tries.values()}) == 1, page
        for search, tried in tries.items():
            (method,) = {base(one) for one in tried}
            assert len({contents(one) for one in tried}) == len(tried) > 1, (page, search)
            assert contents(published(method)) in {contents(one) for one in tried}, (page, search)
            assert set().union(*map(named, tried)) <= named(tuning.expressions(method)[0]), (page, search)


def test_tries_that_a_default_makes_the_same_are_refused(tuning: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the default weight of CDPA became one of those that were tried."""
    before = ("", "(weight=0.3)", "(weight=0.1)", "(weight=0.03)", "(tau=0.1)", "(tau=0.1,weight=0.1)")
    monkeypatch.setitem(tuning.SETTINGS, "fedbcs", before)
    with pytest.raises(PolyclinicError, match=r"'fedbcs' and 'fedbcs\(weight=0\.1\)' are the same method"):
        tuning.expressions("fedbcs")


def test_the_published_settings_are_tested_beside_the_chosen_ones(
    tuning: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The published ones, and not a method's defaults; where nothing better was found there is one row."""
    compared: list[tuple[str, ...]] = []

    class Table:
        def to_markdown(self) -> str:
            return ""

    def compare(recipe: str, methods: Any, **options: Any) -> Table:
        compared.append(tuple(methods))
        return Table()

    def search(recipe: str, overrides: object, method: str, options: object) -> dict[str, Any]:
        tried = tuning.expressions(method)
        chosen = tried[2 if method == "fedbcs" else 0]
        return {"scores": {one: [0.5] for one in tried}, "chosen": chosen}

    rates: dict[str, Any] = {"scores": {"1e-3": [0.5]}, "chosen": "1e-3"}
    monkeypatch.setattr(tuning, "search_rate", lambda *arguments: rates)
    monkeypatch.setattr(tuning, "search_settings", search)
    monkeypatch.setattr("polyclinic.compare", compare)
    tuning.main(["recipe.toml", "--methods", "fedbcs,pathfl", "--out", str(tmp_path)])
    (rows,) = compared
    wanted = ["fedavg", PUBLISHED["fedbcs"], "fedbcs(weight=0.1)", PUBLISHED["pathfl"]]
    assert [contents(row) for row in rows] == [contents(row) for row in wanted]
