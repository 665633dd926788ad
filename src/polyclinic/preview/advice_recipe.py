"""Advice as the text of a recipe, and as the commands that go on from it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from polyclinic.core.wording import counted
from polyclinic.preview.advice import Advice
from polyclinic.recipe import TrainingSettings
from polyclinic.recipe.files import make_recipe, parse_recipe
from polyclinic.runs.plan import RunPlan, plan_run

_SEEDS = 3


def advised_recipe(advice: Advice, federation: str) -> str:
    """A recipe with the advised settings, each with its reason as a comment; everything else has its default."""
    source = federation if federation.startswith("demo:") else str(Path(federation).resolve())
    sections: dict[str, list[str]] = {}
    for setting in advice.settings:
        section, _, key = setting.key.partition(".")
        sections.setdefault(section, []).extend([f"# {setting.reason}", f"{key} = {setting.value}"])
    if advice.labelled is not None:
        sections.setdefault("data", []).append(f"labelled = {advice.labelled}")
    if advice.unseen:
        sections.setdefault("protocol", []).append('kind = "leave-one-site-out"')
    # A JSON string is a TOML string, whatever is in a folder's name.
    lines = [f"federation = {json.dumps(source)}", f"method = {json.dumps(advice.methods[0].method)}"]
    for section, keys in sections.items():
        lines += ["", f"[{section}]", *keys]
    return "\n".join([*lines, ""])


def advised_plan(recipe: str) -> RunPlan:
    """The plan of a recipe's text."""
    return plan_run(make_recipe(parse_recipe(recipe, "the advised recipe")))


def write_command(advice: Advice, federation: str) -> str:
    """The same question once more, with its recipe as a file."""
    options = ["--unseen"] if advice.unseen else []
    options += [] if advice.labelled is None else ["--labelled", str(advice.labelled)]
    return shlex.join(["polyclinic", "advise", federation, *options, "--write", "recipe.toml"])


def compare_command(advice: Advice, recipe: str) -> str:
    """The comparison of the advised methods; ``recipe`` is the file."""
    methods = ",".join(advice.compared)
    words = ["polyclinic", "compare", recipe, "--methods", methods, "--seeds", str(_SEEDS), "--out", "runs/advised"]
    return shlex.join(words)


def number_of_runs(advice: Advice) -> int:
    """How many runs the comparison makes."""
    return len(advice.compared) * _SEEDS


def about_runs(advice: Advice) -> str:
    """How many runs the comparison makes, and how long they are, in words."""
    rounds = counted(TrainingSettings().rounds, "round")
    runs = f"{counted(number_of_runs(advice), 'run')} ({counted(len(advice.compared), 'method')}, {_SEEDS} seeds)"
    each = f" of {advice.traits.sites} trainings each, with another site left out," if advice.unseen else ""
    return (
        f"{runs}{each} of {rounds}. Methods can be compared where the validation Dice no longer rises: give "
        "training.rounds what that takes first"
    )
