"""Advice as the text of a recipe, and what would leave a site with it."""

from __future__ import annotations

import json
from pathlib import Path

from polyclinic.core.wording import readable_bytes
from polyclinic.preview.advice import Advice
from polyclinic.preview.explain import explanation
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import make_recipe, parse_recipe


def advised_recipe(advice: Advice, federation: str, unseen: bool, labelled: int | None) -> str:
    """A recipe with the advised settings, each with its reason as a comment; everything else has its default."""
    source = federation if federation.startswith("demo:") else str(Path(federation).resolve())
    sections: dict[str, list[str]] = {}
    for setting in advice.settings:
        section, _, key = setting.key.partition(".")
        sections.setdefault(section, []).extend([f"# {setting.reason}", f"{key} = {setting.value}"])
    if labelled is not None:
        sections.setdefault("data", []).append(f"labelled = {labelled}")
    if unseen:
        sections.setdefault("protocol", []).append('kind = "leave-one-site-out"')
    # A JSON string is a TOML string, whatever is in a folder's name.
    lines = [f"federation = {json.dumps(source)}", f"method = {json.dumps(advice.methods[0].method)}"]
    for section, keys in sections.items():
        lines += ["", f"[{section}]", *keys]
    return "\n".join([*lines, ""])


def what_leaves(recipe: str, method: str) -> str:
    """What a site sends in every round with a method under a recipe's text, in a few words."""
    facts = explanation(with_changes(make_recipe(parse_recipe(recipe, "the advised recipe")), {"method": method}))
    if facts["images_leave"]:
        return "every image and label"
    shared = sorted({row["what"] for row in facts["shared"]})
    size = readable_bytes(facts["weights_bytes"] + facts["shared_bytes"])
    kept = f" but {len(facts['kept'])} that stay" if facts["kept"] else ""
    return f"{size} a round: weights{kept}{''.join(f'; {what}' for what in shared)}"
