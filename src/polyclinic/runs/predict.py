"""Masks for new images with the model of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.files import read_json
from polyclinic.data.federation import Federation, Item
from polyclinic.data.own_intensity import with_own_intensity
from polyclinic.data.prediction_inputs import list_images
from polyclinic.data.preprocessing import prepare
from polyclinic.data.site_intensity import SiteIntensity, read_intensity
from polyclinic.data.voxel_grid import to_file_grid
from polyclinic.data.writers import write_label
from polyclinic.federation.checkpoint import Checkpoint, ServerState
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.task_agreement import task_from


def predict(
    run: str | Path,
    images: str | Path,
    out: str | Path,
    *,
    site: str | None = None,
    part: str | None = None,
    model: str | None = None,
    progress: Callable[[int, int, str], None] = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Segment an image file or a folder of them; each mask has its image's name, format and geometry.

    ``site`` chooses the model of one site, for methods whose sites have models of their own, and with
    ``data.intensity = "site"`` the mean and deviation that images are scaled by, else those of these images; ``part``
    chooses among the trainings of a protocol with several; ``model`` is ``best`` or ``last``, by default the one that
    was tested. ``warn`` is told when the training is not finished, and whose mean and deviation are used.
    """
    workspace, federation = load_model(Path(run), site=site, part=part, model=model, warn=warn)
    listed = list_images(Path(images), workspace.task.image_channels, workspace.task.zero_fill)
    items = [Item("", found.name, found.images, None, found.name, places=found.places) for found in listed]
    federation = with_own_intensity(federation, items, workspace.recipe.data, warn)
    if any(path.resolve().parent == Path(out).resolve() for item in items for path in item.images):
        raise PolyclinicError(f"--out {out}: holds the images, which masks would overwrite; choose another folder.")
    written, failed = [], []
    for number, item in enumerate(items):
        progress(number, len(items), item.name)
        try:
            written.append(write_label(Path(out) / item.name, _segment(workspace, federation, item), item))
        except PolyclinicError as error:
            failed.append(str(error))
    if failed:
        raise PolyclinicError(
            f"{len(written)} masks were written to {out}; {len(failed)} could not be made: {' '.join(failed)}"
        )
    return written


def _segment(workspace: Workspace, federation: Federation, item: Item) -> npt.NDArray[np.uint8]:
    """The mask of one file on its own grid."""
    prepared = prepare(item, federation, workspace.recipe.data)
    stacked = torch.stack([one.image for one in prepared])
    batches = torch.split(stacked, workspace.recipe.evaluation.batch_size)
    probabilities = torch.cat([workspace.predict(batch).cpu() for batch in batches])
    whole = probabilities if prepared[0].slice_index is not None else probabilities[0]
    return to_file_grid(whole, prepared[0].geometry)


def load_model(
    run: Path, *, site: str | None, part: str | None, model: str | None, warn: Callable[[str], None] = lambda _: None
) -> tuple[Workspace, Federation]:
    """The run's network with its weights, and what is needed to prepare images for it."""
    folder = RunFolder(run)
    if not folder.recipe_file.exists():
        raise PolyclinicError(f"{run}: not a run folder (it has no recipe.toml); give the folder that `run` printed.")
    recipe = load_recipe(folder.recipe_file)
    model = model or recipe.training.select
    load_plugins(recipe.plugins)
    task, sliced = task_from(read_json(folder.path / "task.json"))
    workspace = build_workspace(recipe, task)
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
