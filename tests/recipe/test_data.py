from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe import DataSettings
from polyclinic.recipe.files import make_recipe


def data_of(**settings: object) -> DataSettings:
    return make_recipe({"federation": "demo:nuclei", "data": settings}).data


@pytest.mark.parametrize("labelled", [0, -1, 1.5, 1.0, True, "all"])
def test_a_budget_that_is_none_gets_a_sentence(labelled: object) -> None:
    with pytest.raises(PolyclinicError, match=r"data\.labelled.*must be a whole number from 1, or a share above 0"):
        data_of(labelled=labelled)


@pytest.mark.parametrize("labelled", [1, 50, 0.25, None])
def test_a_budget_keeps_its_type(labelled: float | None) -> None:
    """A whole number counts images, a share is of all of them: 1 must not become 1.0."""
    budget = data_of(labelled=labelled).labelled
    assert budget == labelled
    assert type(budget) is type(labelled)


def test_each_site_is_named_once() -> None:
    assert data_of(sites=["north", "south"]).sites == ("north", "south")
    with pytest.raises(PolyclinicError, match=r"data\.sites: 'north' is there twice; name each site once\."):
        data_of(sites=["north", "south", "north"])


@pytest.mark.parametrize("split", [(0.5, 0.1, 0.1), (0.0, 0.5, 0.5), (0.6, 0.2, 0.3)])
def test_a_split_sums_to_1_and_leaves_something_to_train_on(split: tuple[float, ...]) -> None:
    with pytest.raises(PolyclinicError, match=r"data: split must sum to 1 with a training share above 0"):
        data_of(split=split)


@pytest.mark.parametrize("split", [(1.0, 0.0, 0.0), (0.7, 0.1, 0.2)])
def test_shares_of_a_split_may_be_0_and_sum_to_1_but_for_rounding(split: tuple[float, ...]) -> None:
    assert data_of(split=split).split == split


@pytest.mark.parametrize("percentiles", [(99, 1), (5, 5), (-1, 50), (50, 101)])
def test_percentiles_rise_within_0_to_100(percentiles: tuple[float, float]) -> None:
    with pytest.raises(PolyclinicError, match=r"percentiles must rise from 0 to 100"):
        data_of(percentiles=percentiles)
    assert data_of(percentiles=(0, 100)).percentiles == (0, 100)
