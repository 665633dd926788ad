"""What leaves a site in a round of a run, as its components declare it: from the run folder alone, without an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json
from polyclinic.exchange.messages import tensor_bytes
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.method_record import recorded_method
from polyclinic.runs.task_agreement import task_from


def declared_exchange(run: Path, plugins: bool = False) -> dict[str, Any]:
    """Plain data: how many weights travel and how many stay, and every tensor that a component shares, with its shape.

    The network is built as the recipe says, to know its weights; a method that is not known here is an error.
    ``plugins`` allows those that the recipe names to run.
    """
    folder = RunFolder(run)
    recipe = with_changes(load_recipe(folder.recipe_file), {"engine.device": "cpu"})
    load_plugins(recipe.plugins, plugins)
    task_file = folder.path / "task.json"
    if not task_file.exists():
        raise PolyclinicError(f"{task_file}: there is none yet; the run writes it when it starts.")
    task, _ = task_from(read_json(task_file))
    workspace = build_workspace(recipe, task, recorded_method(folder.path, recipe.method))
    pooled = workspace.method.pooled
    weights = {} if pooled else workspace.exchanged_weights()
    shared = [
        {
            "component": component, "tensor": tensor.name, "shape": list(tensor.shape), "what": tensor.what,
            "dtype": str(tensor.dtype).removeprefix("torch."), "pictures_of": tensor.pictures_of,
        }
        for component, tensors in ({} if pooled else workspace.declared()).items()
        for tensor in tensors
    ]  # fmt: skip
    return {
        "images_leave": pooled,
        "weights": {"tensors": len(weights), "bytes": tensor_bytes(weights)},
        "kept": {"tensors": len(workspace.kept), "bytes": tensor_bytes(workspace.kept_weights())},
        "shared": shared,
    }
