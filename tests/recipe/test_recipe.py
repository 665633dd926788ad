"""What two tables of a recipe have to agree on."""

from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.files import make_recipe


def test_rounds_that_are_never_reached_cannot_be_tested() -> None:
    table = {"federation": "memory", "training": {"rounds": 80}}
    assert make_recipe({**table, "evaluation": {"rounds": [40, 80]}}).evaluation.rounds == (40, 80)
    with pytest.raises(PolyclinicError, match=r"evaluation\.rounds names round 120, and training\.rounds = 80"):
        make_recipe({**table, "evaluation": {"rounds": [40, 120]}})
