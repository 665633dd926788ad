from __future__ import annotations

import json

import pytest

from polyclinic.components.registry import components
from polyclinic.methods.registry import methods
from support import call


def test_every_method_and_component_is_listed_and_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = call("methods")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    assert "…" not in done.out
    assert all(line.rstrip().endswith("│") for line in done.out.splitlines() if line.startswith("│"))
    first = [line.split("│")[1].strip() for line in done.out.splitlines() if line.startswith("│")]
    assert set(methods()) | set(components()) == set(filter(None, first))
    assert "weighted_mean(weighting=uniform)" in done.out.replace("\n", "")


def test_json_holds_paper_level_and_settings() -> None:
    done = call("methods", "--json")
    listed = json.loads(done.out)
    assert [row["method"] for row in listed["methods"]] == list(methods())
    assert [row["component"] for row in listed["components"]] == list(components())
    (prox,) = (row for row in listed["methods"] if row["method"] == "fedprox")
    assert prox["year"] == 2020
    assert "Li et al." in prox["paper"]
    (term,) = (row for row in listed["components"] if row["component"] == "proximal")
    assert term["level"] == "objective"
    assert [(s["name"], s["default"]) for s in term["settings"]] == [("mu", 0.01)]
