from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from polyclinic.components.registry import components
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import Method, Part, methods
from polyclinic.report.methods import component_rows, expression_of, method_rows, setting_rows


def test_rows_describe_everything_that_is_registered() -> None:
    rows = {row["method"]: row for row in method_rows()}
    assert rows.keys() == methods().keys()
    assert all(row["summary"].endswith(".") for row in rows.values()), "a sentence for the reader"
    undated = [name for name, row in rows.items() if row["paper"] and not row["year"]]
    assert undated == ["fsf3a"], "the text of FSF3A bears no year"
    assert [name for name, row in rows.items() if row["pooled"]] == ["central"]
    parts = {row["component"]: row for row in component_rows()}
    assert parts.keys() == components().keys()
    levels = ("image", "feature", "objective", "update", "aggregation")
    assert all(row["level"] in levels for row in parts.values())
    assert all(row["summary"] for row in parts.values())


def test_the_expression_shows_what_differs_from_the_defaults() -> None:
    parts = (Part("weighted_mean", {"weighting": "samples"}), Part("proximal", {"mu": 0.5}))
    assert expression_of(Method("m", parts)) == "weighted_mean + proximal(mu=0.5)"
    assert expression_of(parse_method("fedbn")) == "weighted_mean(weighting=uniform) + local_norm"


def test_settings_have_type_default_and_help() -> None:
    class Example(BaseModel):
        mu: float = 0.5
        kind: Literal["a", "b"] = "a"

    assert setting_rows(Example) == [
        {"name": "mu", "default": 0.5, "type": "float", "help": ""},
        {"name": "kind", "default": "a", "type": "Literal['a', 'b']", "help": ""},
    ]
