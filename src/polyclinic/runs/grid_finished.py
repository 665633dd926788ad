"""Which runs of a grid are done already, from their folders alone: no process is started to find out."""

from __future__ import annotations

import os

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe import Recipe, UNetSettings
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import changed_keys, load_recipe
from polyclinic.runs.folder import CHANGEABLE_KEYS, RunFolder
from polyclinic.runs.grid_plan import GridRun
from polyclinic.runs.method_record import method_changes


def is_finished(run: GridRun) -> bool:
    """Whether the run's folder holds its result; a folder that holds a run of another recipe is an error."""
    folder = RunFolder(run.folder)
    finished = folder.summary_file.exists()
    if folder.recipe_file.exists() and (finished or folder.started()):
        before = load_recipe(folder.recipe_file)
        changed = [
            key for key in changed_keys(before, _settled(run.recipe, before)) if not key.startswith(CHANGEABLE_KEYS)
        ]
        changed = method_changes(run.folder, changed, run.recipe.method, before.method)
        if changed:
            raise PolyclinicError(
                f"{folder.recipe_file}: differs from the recipe to resume in {', '.join(changed)}; "
                "resume with the same settings or choose another folder with --out."
            )
    return finished


def _settled(recipe: Recipe, before: Recipe) -> Recipe:
    """The recipe with what a run settles when it starts (``plan_run``), as the run in the folder settled it."""
    changes: dict[str, object] = {}
    if recipe.data.size == "auto":
        changes["data.size"] = before.data.size
    if recipe.evaluation.units == "auto":
        changes["evaluation.units"] = before.evaluation.units
    if recipe.engine.name == "auto":
        changes["engine.name"] = before.engine.name
    network, settled = recipe.network, before.network
    if isinstance(network, UNetSettings) and isinstance(settled, UNetSettings) and _is_open(network, settled):
        changes |= {f"network.{key}": getattr(settled, key) for key in ("depth", "poolings", "kernels")}
    if os.path.realpath(recipe.federation) == os.path.realpath(before.federation):
        changes["federation"] = before.federation
    return with_changes(recipe, changes)


def _is_open(network: UNetSettings, settled: UNetSettings) -> bool:
    """Whether the spacing decides over poolings and kernels; ``depth`` is then the most that there may be."""
    return network.anisotropic == "auto" and network.poolings is None and settled.depth <= network.depth
