"""What is timed, how often, and what is left out with a word."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyclinic.preview import step_time
from polyclinic.preview.step_time import Candidate, seconds_of, take_turns, why_not
from support import tiny_recipe, tiny_task


def test_methods_take_turns_and_the_first_turn_is_not_timed() -> None:
    order: list[str] = []

    def work(name: str) -> float:
        order.append(name)
        return float(len(order))

    taken = take_turns([partial(work, "a"), partial(work, "b")], 3)
    assert "".join(order) == "ba" + "ab" + "ba" + "ab"
    assert taken == [[3, 6, 7], [4, 5, 8]]


def test_a_single_turn_is_timed_at_once() -> None:
    assert take_turns([lambda: 1.0, lambda: 2.0], 1, warm_up=False) == [[1.0], [2.0]]


def candidate(step_flops: float, kept: int = 0, scaled: str | None = None) -> Candidate:
    """A method on a machine that gets 10 FLOPs done in a second, with steps of 3 s."""
    steps: list[int] = []
    count: Any = SimpleNamespace(
        step_flops=step_flops,
        flops=SimpleNamespace(inference=1.0),
        pace=10.0,
        scaled=scaled,
        rehearsal=SimpleNamespace(sites=[SimpleNamespace(kept=kept)]),
        steps=steps,
        open_step=lambda *_: SimpleNamespace(seconds=lambda: steps.append(1) or 3.0, rehearsal=None),
    )
    return Candidate(tiny_recipe("fedavg"), count)


@pytest.fixture(autouse=True)
def _predictions_take_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_time, "_prediction_seconds", lambda _: 1.0)


def test_the_limit_decides_between_all_turns_one_turn_and_none() -> None:
    candidates = [candidate(9), candidate(49), candidate(1000)]
    heard: list[str] = []
    many, single, none = seconds_of(candidates, tiny_task(), repeats=4, limit=10, tell=heard.append)
    assert [len(c.count.steps) for c in candidates] == [5, 1, 0]  # type: ignore[attr-defined]
    assert many == {"inference": {"median": 1.0, "all": [1.0] * 4}, "training": {"median": 3.0, "all": [3.0] * 4},
                    "not_timed": None}  # fmt: skip
    assert single["training"] == {"median": 3.0, "all": [3.0]}
    assert none["training"] == none["inference"] == {"median": None, "all": []}
    assert none["not_timed"] == "a step and a prediction would take about 100 s, --seconds-limit is 10"
    assert heard == [
        "timing 4 steps and predictions of each method", "fedavg: timing one step and one prediction, about 5 s"
    ]  # fmt: skip


def test_reasons_not_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_time, "physical_memory", lambda: 10 * 10**9)
    assert why_not(candidate(9), 10) is None
    assert why_not(candidate(9), 0) == "not asked for"
    assert why_not(candidate(9, scaled="no"), 10) == "its step cannot be made from shapes"
    assert why_not(candidate(9, kept=7 * 10**9), 10) == "a step needs some 7.0 GB of memory, and there are 10.0 GB"


def test_a_step_that_fails_at_its_size_is_a_word_and_no_end() -> None:
    def fail() -> float:
        raise torch.OutOfMemoryError("no room\nfor this")

    failing = candidate(9)
    failing.count.open_step = lambda *_: SimpleNamespace(seconds=fail, rehearsal=None)  # type: ignore[method-assign, misc]
    (result,) = seconds_of([failing], tiny_task(), repeats=1, limit=100)
    assert result["not_timed"] == "a step fails, no room"
    assert result["training"]["all"] == []
