from __future__ import annotations

from typing import Any

import pytest

from polyclinic.report.optimiser_steps import mean_steps, steps_by_value, steps_words


def test_steps_are_the_mean_over_seeds_of_runs_that_tell() -> None:
    runs: list[tuple[str, dict[str, Any]]] = [
        ("central", {"steps": 60}), ("fedavg", {"steps": 240}), ("central", {"steps": 62}), ("fedbn", {}),
        ("fedavg", {"steps": None}),
    ]  # fmt: skip
    assert mean_steps(runs) == {"central": 61, "fedavg": 240}


def test_the_line_names_each_method_where_they_differ() -> None:
    assert steps_words({"central": 240, "fedavg": 240.0}) == (
        "Optimiser steps of all sites together: 240 for every method."
    )
    assert steps_words({"central": 61, "fedavg": 240}) == (
        "Optimiser steps of all sites together: central 61, fedavg 240."
    )


def test_runs_of_earlier_versions_say_nothing() -> None:
    assert steps_words({}) == steps_by_value(("a",), {("1",): {}}) == steps_by_value(("a",), {}) == ""


SAME, OTHER = {"x": 24, "y": 24}, {"x": 48, "y": 24}


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([[SAME, SAME], [SAME, SAME]], "24 for every method"),
        ([[SAME, OTHER], [SAME, OTHER]], "24 for every method with b=1; x 48, y 24 with b=2"),
        ([[SAME, SAME], [OTHER, OTHER]], "24 for every method with a=1; x 48, y 24 with a=2"),
        ([[SAME, {}], [OTHER, OTHER]], "24 for every method with a=1; x 48, y 24 with a=2"),
        (
            [[SAME, OTHER], [OTHER, OTHER]],
            "24 for every method with a=1 and b=1; x 48, y 24 with a=1 and b=2 or a=2 and b=1 or a=2 and b=2",
        ),
    ],
)
def test_a_study_names_the_keys_that_make_a_difference(steps: list[list[dict[str, float]]], words: str) -> None:
    by_values = {(str(a), str(b)): steps[a - 1][b - 1] for a in (1, 2) for b in (1, 2)}
    assert steps_by_value(("a", "b"), by_values) == f"Optimiser steps of all sites together: {words}."


def test_one_key_of_a_study() -> None:
    steps = {("1",): {"x": 24.0}, ("2",): {"x": 24.0}, ("3",): {"x": 36.0}}
    assert steps_by_value(("data.labelled",), steps) == (
        "Optimiser steps of all sites together: x 24 with data.labelled=1 or data.labelled=2; "
        "x 36 with data.labelled=3."
    )
