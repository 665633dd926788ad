"""Recipes of runs that were begun by an earlier version.

A run's ``recipe.toml`` holds every key that there was when the run began, with defaults written out. A key that is
missing there did not exist, and the run did what was the only way then. A user's own recipe is short: what it leaves
out has the default of today.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.recipe.network import settings_class

BEFORE_THE_KEY: dict[str, dict[str, Any]] = {
    "network": {"activation": "relu", "last_activation": "same"},
    "training": {"dice_classes": "all", "dice_over": "image"},
    "strong": {"clip": False},
    "evaluation": {"regions": "argmax"},
}
"""What runs did before a key existed, where that is not the key's default."""


def is_of_a_run(recipe: Path) -> bool:
    """Whether a recipe's file is one that a run wrote: the versions of that time are beside it."""
    return recipe.name == "recipe.toml" and (recipe.parent / "versions.json").is_file()


def with_older_values(table: dict[str, Any]) -> dict[str, Any]:
    """The table of a run's recipe with what the run did before some keys existed."""
    filled = dict(table)
    for section, values in BEFORE_THE_KEY.items():
        own = table.get(section)
        # A network of a plugin need not have these keys.
        if isinstance(own, dict) and (section != "network" or "activation" in settings_class(own).model_fields):
            filled[section] = {**values, **own}
    return filled
