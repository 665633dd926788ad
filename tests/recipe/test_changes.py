from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe import Recipe, TrackingSettings
from polyclinic.recipe.changes import with_changes


def test_dotted_keys_change_a_copy_and_nothing_else() -> None:
    recipe = Recipe(federation="demo:nuclei", seed=3)
    changed = with_changes(
        recipe, {"training.rounds": 3, "evaluation.units": "mm", "training.lr": 0.5, "method": "fedbn"}
    )
    assert (changed.training.rounds, changed.training.lr) == (3, 0.5)
    assert (changed.evaluation.units, changed.method, changed.seed) == ("mm", "fedbn", 3)
    assert recipe == Recipe(federation="demo:nuclei", seed=3)
    back = {"training.rounds": 20, "training.lr": 1e-3, "evaluation.units": "auto", "method": "fedavg"}
    assert with_changes(changed, back) == recipe


def test_a_whole_section_and_a_key_of_it() -> None:
    recipe = Recipe(federation="demo:nuclei", tracking=TrackingSettings(mlflow=True))
    changed = with_changes(recipe, {"tracking.tensorboard": True, "tracking": TrackingSettings()})
    assert changed.tracking == TrackingSettings(tensorboard=True)
    assert with_changes(recipe.training, {"rounds": 7}).rounds == 7


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("trainin.rounds", "'trainin' is not a key of the recipe, did you mean 'training'"),
        ("training.round", r"'training\.round' is not a key of the recipe, did you mean 'rounds'"),
        ("zzz", "'zzz' is not a key of the recipe; keys are federation, method"),
        ("training.rounds.x", r"'training\.rounds' is a value and holds no key 'x'"),
    ],
)
def test_an_unknown_key_is_an_error(key: str, words: str) -> None:
    with pytest.raises(PolyclinicError, match=words):
        with_changes(Recipe(federation="demo:nuclei"), {key: 1})
