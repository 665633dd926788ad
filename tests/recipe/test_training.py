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
