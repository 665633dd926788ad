"""A budget of labels that hides nothing is no budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.preview.advice_budget import budget_note
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.plan import RunPlan, plan_run


def plan(federation: Path | str, labelled: int) -> RunPlan:
    recipe = make_recipe({"federation": str(federation), "network": {"width": 2, "depth": 1}})
    return plan_run(with_changes(recipe, {"data.labelled": labelled, "data.size": (16, 16)}))


def test_sites_that_keep_all_labels_are_named(tiny_federation: Path) -> None:
    """North has three training images, south two."""
    assert budget_note(plan(tiny_federation, 1), 1) is None
    note = budget_note(plan(tiny_federation, 2), 2)
    assert note == "1 site of 2 (south) would keep all labels: the fewest that a site has for training are 2"


@pytest.mark.parametrize("labelled", [3, 500])
def test_a_budget_above_all_sites_is_refused(tiny_federation: Path, labelled: int) -> None:
    with pytest.raises(PolyclinicError, match=f"--labelled {labelled}: no site has more than 3 labelled training"):
        budget_note(plan(tiny_federation, labelled), labelled)


def test_slices_count_where_volumes_are_cut() -> None:
    """A budget is spent in slices there, of which twelve training cases have 48, and eight 32."""
    assert budget_note(plan("demo:cardiac", 30), 30) is None
