"""The model of a run, with what is needed to prepare images for it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import torch

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.files import read_json
from polyclinic.data.federation import Federation
from polyclinic.data.site_intensity import SiteIntensity, read_intensity
from polyclinic.federation.checkpoint import Checkpoint, ServerState
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.method_record import recorded_method
from polyclinic.runs.task_agreement import task_from


def load_model(
    run: Path,
    *,
    site: str | None,
    part: str | None,
    model: str | None,
    warn: Callable[[str], None] = lambda _: None,
    device: str | None = None,
    plugins: bool = False,
) -> tuple[Workspace, Federation]:
    """The run's network with its weights, and what is needed to prepare images for it; ``device`` is the recipe's.

    With ``data.intensity = "site"`` and a ``site`` the numbers that its images are scaled by are there, too.
    ``plugins`` allows those that the recipe names to run.
    """
    folder = RunFolder(run)
    if not folder.recipe_file.exists():
        inside = sorted(path.parent for path in run.glob("*/recipe.toml"))
        advice = f"give one of the runs in it, such as {inside[0]}" if inside else "give the folder that `run` printed"
        raise PolyclinicError(f"{run}: not a run folder (it has no recipe.toml); {advice}.")
    recipe = load_recipe(folder.recipe_file)
    if device is not None:
        recipe = with_changes(recipe, {"engine.device": device})
    model = model or recipe.training.select
    load_plugins(recipe.plugins, plugins)
    task, sliced = task_from(read_json(folder.path / "task.json"))
    workspace = build_workspace(recipe, task, recorded_method(folder.path, recipe.method))
    name = _one_of("part", part, _names(folder.path / "checkpoints"), run)
    checkpoint = Checkpoint(folder.part(name))
    weights, unseen, number = checkpoint.load_model(model)
    state, tested = checkpoint.load() or ServerState(), folder.tested_file(name).exists()
    if not tested and state.round < recipe.training.rounds and not state.stopped:
        done = f"{state.round} of {recipe.training.rounds} rounds are done"
        warn(f"{run}: this training is not finished, {done}; go on with --resume for the final model.")
    personal, intensity = {}, dict[str, SiteIntensity]()
    if workspace.kept and site is None and not workspace.kept <= unseen.keys():
        sites = ", ".join(folder.sites(name))
        if not sites:
            raise PolyclinicError(
                f"{recipe.method} gives every site a model of its own, and their personal weights are at the sites: "
                f"link a site's HOME/runs/RUN to {run / 'sites' / 'NAME'} there, and give --site NAME "
                "(docs/tutorials/first-federation.md)."
            )
        raise PolyclinicError(f"{recipe.method} gives every site a model of its own; choose one with --site: {sites}.")
    if site is not None:
        chosen = _one_of("site", site, list(folder.sites(name)), run)
        # A site may have trained in a round that the server did not finish.
        memory = SiteStore(folder.site(name, chosen)).load(before=max(state.round, number + 1))
        personal = memory.personal_at(None if model == "last" else number)
        if workspace.kept and not personal and not workspace.kept <= unseen.keys():
            raise PolyclinicError(
                f"--site {chosen}: did not train in '{name}', and {recipe.method} has no model for it."
            )
        if recipe.data.intensity == "site":
            intensity[""] = read_intensity(folder.site(name, chosen))
    workspace.load(unseen, personal, weights)
    return workspace, Federation(run.name, task, {}, run, sliced, intensity)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _one_of(what: str, wanted: str | None, known: list[str], run: Path) -> str:
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted in known:
        return str(wanted)
    if not known:
        raise PolyclinicError(f"{run}: holds no {what} yet; finish the run with --resume first.")
    problem = f"--{what} is needed" if wanted is None else f"--{what} {wanted} is not in this run"
    raise PolyclinicError(f"{run}: {problem}{suggestion(wanted or '', known) or '.'} It holds: {', '.join(known)}.")


def fingerprint(workspace: Workspace) -> str:
    """A hash of all weights: equal for equal models."""
    digest = sha256()
    for name, tensor in sorted(workspace.network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
