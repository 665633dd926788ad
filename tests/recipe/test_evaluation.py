from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.files import make_recipe


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (["dice", "iou", "dice"], r"evaluation\.metrics: 'dice' is there twice; name each metric once\."),
        ([], r"evaluation\.metrics = \[\] is not possible: it must be a list of at least 1 value"),
    ],
)
def test_metrics_are_named_once_and_there_is_one(metrics: list[str], words: str) -> None:
    with pytest.raises(PolyclinicError, match=words):
        make_recipe({"federation": "demo:nuclei", "evaluation": {"metrics": metrics}})


def test_metrics_keep_their_order() -> None:
    recipe = make_recipe({"federation": "demo:nuclei", "evaluation": {"metrics": ["iou", "dice"]}})
    assert recipe.evaluation.metrics == ("iou", "dice")


@pytest.mark.parametrize(
    ("table", "settings"),
    [("evaluation", {"overlap": 1.0}), ("evaluation", {"batch_size": 0}), ("protocol", {"folds": 1})],
)
def test_numbers_that_cannot_be_done_are_refused(table: str, settings: dict[str, float]) -> None:
    with pytest.raises(PolyclinicError, match=rf"{table}\.{next(iter(settings))}"):
        make_recipe({"federation": "demo:nuclei", table: settings})
