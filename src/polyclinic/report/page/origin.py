"""Where the numbers come from: recipe, versions, machine, and the command that makes them again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.files import load_recipe
from polyclinic.report.page.results import Results
from polyclinic.runs.folder import RunFolder


def commands(results: Results) -> list[str]:
    """What to type, with the recipe that stands on the page saved as ``recipe.toml``."""
    grid, plan = results.grids[0], results.plan
    seeds = f"{','.join(map(str, grid.seeds))}{',' if len(grid.seeds) == 1 else ''}"
    methods = ["--methods", ",".join(grid.methods), "--seeds", seeds]
    name = results.folder.resolve().name
    if results.kind == "run":
        words = ["run", "recipe.toml"]
    elif results.kind == "study":
        axes = plan.get("axes") or {plan.get("key"): plan.get("values", ())}
        vary = [word for key, values in axes.items() for word in ("--vary", f"{key}={','.join(map(str, values))}")]
        words = ["study", "recipe.toml", *vary, *methods]
    elif results.kind == "ablation" and plan.get("method"):
        components = ",".join(map(str, plan.get("components", ())))
        words = ["ablate", "recipe.toml", "--method", str(plan["method"]), "--components", components, "--seeds", seeds]
    else:
        words = ["compare", "recipe.toml", *methods]
    shown = ["report", f"{name}-again", *(["--plugins"] if plugins(results) else [])]
    return [shlex.join(["polyclinic", *part]) for part in ([*words, "--out", f"{name}-again"], shown)]


def recipe_text(results: Results) -> str:
    """The recipe of a run, as it was written with every default."""
    file = results.first.folder / "recipe.toml"
    try:
        return file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise PolyclinicError(f"{file}: cannot be read ({error}); restore it from a copy.") from error


def plugins(results: Results) -> list[str]:
    """The files that the recipe names beside itself: without them it cannot be run."""
    named = results.first.recipe.get("plugins", [])
    return [Path(str(name)).name for name in named] if isinstance(named, list) else []


def refused_plugins(results: Results) -> str:
    """Why plugins of these runs do not run here unless they are allowed to; empty where there are none."""
    from polyclinic.methods.registry import load_plugins  # takes PyTorch, which takes seconds

    try:
        for run in (run for grid in results.grids for run in grid.runs):
            if run.recipe.get("plugins"):
                load_plugins(load_recipe(RunFolder(run.folder).recipe_file).plugins, allowed=False)
    except PolyclinicError as error:
        return str(error)
    return ""


def versions(results: Results) -> list[tuple[str, str]]:
    """Names and versions of everything that a number may depend on; runs that differ are named."""
    tables = [run.table("versions.json") for grid in results.grids for run in grid.runs]
    found: dict[str, dict[str, None]] = {}
    for table in tables:
        for name, version in table.items():
            if name != "seed":
                found.setdefault(str(name), {})[str(version)] = None
    return [(name, " or ".join(known)) for name, known in found.items()]


def splits(results: Results) -> list[tuple[str, str]]:
    """The hash of each split by seed: two reports with the same one saw the same images."""
    found: dict[str, str] = {}
    for run in (run for grid in results.grids for run in grid.runs):
        hashes: Any = (run.summary or {}).get("split_sha256", {})
        for part, sha256 in hashes.items() if isinstance(hashes, dict) else ():
            where = "" if part == "all" else f", {part}"
            found.setdefault(f"seed {run.seed}{where}", str(sha256))
    return list(found.items())
