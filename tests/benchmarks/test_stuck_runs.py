"""The benchmark of stuck runs: every row is a recipe that loads, and differs from the first in what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from polyclinic.recipe.files import changed_keys, load_recipe

REAL = Path(__file__).resolve().parents[2] / "benchmarks" / "real"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REAL))
    for name in ("stuck_runs", "training_defaults", "records"):
        sys.modules.pop(name, None)


def test_rows_differ_from_the_first_in_what_they_say_alone() -> None:
    import stuck_runs

    first, *others = stuck_runs.VARIANTS.values()
    for _, recipe, _ in stuck_runs.CASES.values():
        path = REAL / "recipes" / f"{recipe}.toml"
        before = load_recipe(path, [f"{key}={value}" for key, value in first.items()])
        for variant in others:
            after = load_recipe(path, [f"{key}={value}" for key, value in variant.items()])
            assert set(changed_keys(before, after)) == {k for k in variant if variant[k] != first.get(k)} != set()


def test_rows_of_training_defaults_name_every_key_that_any_of_them_changes() -> None:
    """So that a change of the defaults changes no row. An unset prior cannot be written down: TOML has no null."""
    import training_defaults

    keys = {key for variant in training_defaults.VARIANTS.values() for key in variant} - {"network.prior_bias"}
    assert all(variant.keys() - {"network.prior_bias"} == keys for variant in training_defaults.VARIANTS.values())
