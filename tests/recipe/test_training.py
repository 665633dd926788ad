from __future__ import annotations

import pytest

from polyclinic.recipe import TrainingSettings
from polyclinic.recipe.training import learning_rate


@pytest.mark.parametrize(("schedule", "middle"), [("constant", 1.0), ("cosine", 0.5), ("poly", 0.5**0.9)])
def test_learning_rates(schedule: str, middle: float) -> None:
    wanted = TrainingSettings(lr=1.0, schedule=schedule)  # type: ignore[arg-type]
    assert learning_rate(wanted, 0.0) == 1.0
    assert learning_rate(wanted, 0.5) == pytest.approx(middle)
    assert schedule == "constant" or learning_rate(wanted, 0.999) < 0.01


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_warm_up_rises_linearly_and_is_never_0(schedule: str) -> None:
    wanted = TrainingSettings(lr=1.0, schedule=schedule, warmup=3)  # type: ignore[arg-type]
    plain = TrainingSettings(lr=1.0, schedule=schedule)  # type: ignore[arg-type]
    for done in (0.0, 0.5, 1.0, 2.9):
        share = 0.25 + done * 0.25
        assert learning_rate(wanted, done / 10, done) == pytest.approx(share * learning_rate(plain, done / 10, done))
    for done in (3.0, 3.5, 9.0):
        assert learning_rate(wanted, done / 10, done) == learning_rate(plain, done / 10)
