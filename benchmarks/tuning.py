"""Settings of methods, searched on validation data with one budget for all, then tested once with other seeds.

    python benchmarks/tuning.py fgasl-cardiac-small --methods fixmatch,fgasl --jobs 2 --out runs/tuning

What is done, and why, is on docs/explanation/tuning.md: learning rates of the reference first, then as many settings of
every method, then one comparison of the chosen ones. An interrupted search goes on when it is started again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json, write_text
from polyclinic.methods.expression import parse_method, same_method
from polyclinic.recipe.files import load_recipe
from polyclinic.report.tables import markdown_table
from polyclinic.runs.grid_plan import plan_grid, split_expressions
from polyclinic.runs.study import plan_study

BUDGET = 6
LEARNING_RATES = ("3e-4", "1e-3", "2e-3", "3e-3", "5e-3", "1e-2")
# What comes behind a method's name: BUDGET entries for each, the published settings first. Each names every setting
# that is searched here or on a page of benchmarks/real, so that no default moves a row.
SETTINGS = {
    "fixmatch": (
        "(weight=1,threshold=0.95,dice=false)",
        "(weight=1,threshold=0.7,dice=false)",
        "(weight=1,threshold=0.7,dice=true)",
        "(weight=1,threshold=0.85,dice=false)",
        "(weight=0.3,threshold=0.95,dice=false)",
        "(weight=0.3,threshold=0.95,dice=true)",
    ),
    "fgasl": (
        "+dual_teacher(weight=1,ema=0.99,delta_start=0.15,delta_end=0.3,dice=true,debias=false,quantiles=all)",
        "+dual_teacher(weight=0.1,ema=0.99,delta_start=0.15,delta_end=0.3,dice=true,debias=false,quantiles=all)",
        "+dual_teacher(weight=1,ema=0.99,delta_start=0.15,delta_end=0.5,dice=true,debias=false,quantiles=all)",
        "+dual_teacher(weight=1,ema=0.99,delta_start=0.3,delta_end=0.8,dice=true,debias=false,quantiles=all)",
        "+dual_teacher(weight=0.1,ema=0.99,delta_start=0.15,delta_end=0.3,dice=false,debias=false,quantiles=all)",
        "+dual_teacher(weight=0.1,ema=0.9,delta_start=0.15,delta_end=0.5,dice=true,debias=false,quantiles=all)",
    ),
    "rscfed": (
        "(ema=0.999,weight=0.02)", "(ema=0.9,weight=0.02)", "(ema=0.99,weight=0.02)", "(ema=0.999,weight=0.1)",
        "(ema=0.999,weight=0.3)", "(ema=0.9,weight=0.1)",
    ),
    "fedcd": (
        "(ema=0.999,weight=1)", "(ema=0.9,weight=1)", "(ema=0.99,weight=1)", "(ema=0.999,weight=0.3)",
        "(ema=0.999,weight=3)", "(ema=0.9,weight=3)",
    ),
    "dpl": (
        "(weight=1,confidence=0.75,uncertainty=0.05)",
        "(weight=1,confidence=0.6,uncertainty=0.05)",
        "(weight=1,confidence=0.9,uncertainty=0.05)",
        "(weight=0.3,confidence=0.75,uncertainty=0.05)",
        "(weight=1,confidence=0.75,uncertainty=0.1)",
        "(weight=0.3,confidence=0.6,uncertainty=0.05)",
    ),
    "augseg": (
        "(ema=0.999,threshold=0.95,weight=1)", "(ema=0.9,threshold=0.95,weight=1)",
        "(ema=0.99,threshold=0.95,weight=1)", "(ema=0.999,threshold=0.7,weight=1)",
        "(ema=0.999,threshold=0.95,weight=0.3)", "(ema=0.9,threshold=0.7,weight=1)",
    ),
    "fedbcs": (
        "(anchors=all,tau=0.4,weight=1)", "(anchors=all,tau=0.4,weight=0.3)", "(anchors=all,tau=0.4,weight=0.1)",
        "(anchors=all,tau=0.4,weight=0.03)", "(anchors=all,tau=0.1,weight=1)", "(anchors=all,tau=0.1,weight=0.1)",
    ),
    "pathfl": (
        "+cse(exclude_self=true,statistics=scalar,probability=1)",
        "+cse(exclude_self=true,statistics=scalar,probability=0.5)",
        "+cse(exclude_self=true,statistics=scalar,probability=0.25)",
        "+cse(exclude_self=false,statistics=scalar,probability=1)",
        "+cse(exclude_self=true,statistics=channel,probability=1)",
        "+cse(exclude_self=true,statistics=channel,probability=0.25)",
    ),
}  # fmt: skip


def expressions(method: str) -> list[str]:
    """The settings of a method that are tried, as expressions, the published ones first."""
    if method not in SETTINGS:
        known = ", ".join(SETTINGS)
        raise PolyclinicError(f"--methods: no settings of '{method}' are written down; add them, or choose of {known}.")
    assert len(SETTINGS[method]) == len(LEARNING_RATES) == BUDGET, "the same number of tries for all"
    tries = [f"{method}{settings}" for settings in SETTINGS[method]]
    for one, other in combinations(tries, 2):
        if same_method(parse_method(one), parse_method(other)):
            raise PolyclinicError(f"SETTINGS: '{one}' and '{other}' are the same method; change one of them.")
    return tries


def validation_dice(run: Path) -> float:
    """Mean over the parts of a protocol of the validation Dice of the model that the recipe would test."""
    select = load_recipe(run / "recipe.toml").training.select
    by_part: dict[str, list[dict[str, Any]]] = {}
    for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        by_part.setdefault(event["part"], []).append(event)
    scores: list[float] = []
    for part, events in by_part.items():
        validated = [event["validation"]["dice"] for event in events if event["validation"].get("dice") is not None]
        if not validated:
            raise PolyclinicError(f"{run}: part {part} has no validation score; give data.split a validation share.")
        scores.append(validated[-1] if select == "last" else max(validated))
    return mean(scores)


def scored(folders: dict[str, Sequence[Path]]) -> dict[str, list[float]]:
    """Validation Dice of every seed, by what was tried."""
    return {name: [validation_dice(folder) for folder in runs] for name, runs in folders.items()}


def best(scores: dict[str, list[float]]) -> str:
    """The highest mean; of equals the one that is written first, of settings the published one."""
    return max(scores, key=lambda name: mean(scores[name]))


def search_rate(recipe: str, overrides: Sequence[str], reference: str, options: argparse.Namespace) -> dict[str, Any]:
    """Learning rates of the reference method."""
    out, vary = options.out / "learning-rate", f"training.lr={','.join(LEARNING_RATES)}"
    polyclinic.study(recipe, vary, [reference], out=out, seeds=options.seeds, overrides=overrides, jobs=options.jobs)
    grids = plan_study(recipe, tuple(overrides), vary, (reference,), tuple(options.seeds), out).grids
    scores = scored({value: [cell.folder for cell in grid.cells] for value, grid in grids.items()})
    return {"scores": scores, "chosen": best(scores)}


def search_settings(recipe: str, overrides: Sequence[str], method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Settings of one method."""
    tried, out = expressions(method), options.out / method
    polyclinic.compare(recipe, tried, out=out, seeds=options.seeds, overrides=overrides, jobs=options.jobs)
    cells = plan_grid(load_recipe(recipe, overrides), tuple(tried), tuple(options.seeds), out).cells
    scores = scored({name: [cell.folder for cell in cells if cell.method == name] for name in tried})
    return {"scores": scores, "chosen": best(scores)}


def table(found: dict[str, dict[str, Any]]) -> str:
    """All that was tried, with what was chosen of it."""
    rows = [["search", "tried", "validation Dice", "chosen"]]
    for search, result in found.items():
        for name, values in result["scores"].items():
            spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
            chosen = "x" if name == result["chosen"] else ""
            rows.append([search, f"`{name}`", f"{100 * mean(values):.2f}{spread}", chosen])
    return markdown_table(rows)


def main(arguments: Iterable[str] | None = None) -> None:
    """Search, write down, and compare the chosen settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--methods", required=True, help="such as fixmatch,fgasl")
    parser.add_argument(
        "--reference", default="fedavg", help="whose learning rate serves all; fl_lower with few labels"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[100, 101])
    parser.add_argument("--test-seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-test", action="store_true", help="search alone: the test is for the end")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if set(options.seeds) & set(options.test_seeds):
        raise PolyclinicError("--seeds and --test-seeds: have a seed in common; search and test with different ones.")
    methods = split_expressions(options.methods)
    for method in methods:
        expressions(method)
    found = {"training.lr": search_rate(options.recipe, options.overrides, options.reference, options)}
    overrides = [*options.overrides, f"training.lr={found['training.lr']['chosen']}"]
    for method in methods:
        found[method] = search_settings(options.recipe, overrides, method, options)
        write_json(options.out / "tuning.json", found)
        write_text(options.out / "tuning.md", table(found) + "\n")
    print(table(found))
    if not options.no_test:
        pairs = [name for method in methods for name in (expressions(method)[0], found[method]["chosen"])]
        rows = dict.fromkeys([options.reference, *pairs])
        print(polyclinic.compare(
            options.recipe, rows, out=options.out / "test", seeds=options.test_seeds, overrides=overrides,
            jobs=options.jobs,
        ).to_markdown())  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except PolyclinicError as error:
        sys.exit(f"error: {error}")
