"""The fingerprint of a recipe: one SHA-256 for all texts that ask a site for the same thing.

Coordinator and hospital compare it, a policy can list it, every line of the audit log has it. It covers every key, with
defaults written out, but not what a site decides for itself nor what changes nothing that leaves (``NOT_COVERED``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polyclinic.recipe.files import make_recipe, parse_recipe, with_checked_network
from polyclinic.recipe.recipe import Recipe

NOT_COVERED = (
    "federation",
    "tracking",
    "engine",
    "data.sites",
    "data.cache",
    "data.cache_limit_mb",
    "network.weights",
    "training.quorum",
    "training.max_update_ratio",
    "training.stuck_after",
    "evaluation.units",
)
"""Keys and tables that the fingerprint leaves out; of ``network.weights`` it has whether they are random."""
_REPLACED_BY_SITE = (
    "federation", "tracking", "data.sites", "data.cache", "data.cache_limit_mb", "network.weights", "engine.device",
)  # fmt: skip
LONGEST_RECIPE = 100_000  # letters; one with all keys has 4000
_LONGEST_METHOD = 500


@dataclass(frozen=True)
class AskedRecipe:
    """The recipe of a request as an audit names it; ``sha256`` is empty where the text is no recipe."""

    text: str = ""
    text_sha256: str = ""
    sha256: str = ""
    method: str = ""

    def audit_fields(self) -> dict[str, str]:
        """What a line of the audit log says of the recipe."""
        return {"recipe_sha256": self.sha256, "recipe_text_sha256": self.text_sha256, "method": self.method}


def recipe_sha256(recipe: Recipe) -> str:
    """The fingerprint of a checked recipe."""
    text = json.dumps(covered_table(recipe), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def covered_table(recipe: Recipe) -> dict[str, Any]:
    """What the fingerprint covers, as plain data."""
    # Without empty keys: those of a plugin's network are not known before the plugin is loaded.
    table = _without_none(with_checked_network(recipe).model_dump(mode="json"))
    random = table["network"].get("weights") == "random"
    for key in NOT_COVERED:
        section, _, name = key.rpartition(".")
        (table[section] if section else table).pop(name, None)
    table["method"] = _without_spaces(recipe.method)
    return {**table, "network": {**table["network"], "random_weights": random}}


def read_asked(text: Any) -> AskedRecipe:
    """The recipe in a request, which may be anything; never raises."""
    if not isinstance(text, str):
        return AskedRecipe()
    unread = hashed(text)
    try:
        recipe = _without_files(text)
        method = _without_spaces(recipe.method)[:_LONGEST_METHOD]
        return AskedRecipe(text, unread.text_sha256, recipe_sha256(recipe), method)
    except Exception:  # a hostile text may exhaust the parser in many ways; the request itself gets the sentence
        return unread


def hashed(text: Any) -> AskedRecipe:
    """The recipe in a request by the hash of its text alone, without reading it."""
    if not isinstance(text, str):
        return AskedRecipe()
    return AskedRecipe(text[:LONGEST_RECIPE], hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest())


def differing_keys(first: str, second: str) -> list[str]:
    """Keys in which the covered parts of two recipes' texts differ."""
    tables = [_leaves(covered_table(_without_files(text))) for text in (first, second)]
    return sorted(key for key in tables[0].keys() | tables[1].keys() if tables[0].get(key) != tables[1].get(key))


def _without_files(text: str) -> Recipe:
    """The recipe of a server's text without what the site replaces, as valid as the site would find it.

    A path in it must not make this machine read a file of its own.
    """
    if len(text) > LONGEST_RECIPE:
        raise ValueError("too long")
    table = parse_recipe(text, "the server's recipe")
    network = table.get("network")
    random = isinstance(network, Mapping) and network.get("weights") == "random"
    for key in _REPLACED_BY_SITE:
        section, _, name = key.rpartition(".")
        inner = table.get(section) if section else table
        if isinstance(inner, dict) and not (random and key == "network.weights"):
            inner.pop(name, None)
    return make_recipe({**table, "federation": ""}, "the server's recipe")


def _without_spaces(method: str) -> str:
    """A method's expression without the spaces that mean nothing, those beside its signs.

    Two expressions that are not the same must stay two: a space inside of a value separates words, and in a text in
    quotes every one counts.
    """
    method = method.strip()
    return method if {'"', "'"} & set(method) else re.sub(r" *([-+(),=\[\]]) *", r"\1", method)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value


def _leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in table.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves
