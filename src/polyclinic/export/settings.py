"""``model.json``: preprocessing, sliding window and class names of a model, as plain data."""

from __future__ import annotations

from typing import Any

from polyclinic.core.version import VERSION
from polyclinic.data.federation import Federation
from polyclinic.federation.workspace import Workspace


def model_settings(workspace: Workspace, federation: Federation) -> dict[str, Any]:
    """Everything that is needed between a file and its mask; nothing of it says where a run's images were."""
    task, data, evaluation = workspace.task, workspace.recipe.data, workspace.recipe.evaluation
    site = federation.intensity.get("")  # where --site was given
    return {
        "format": "polyclinic-model-1",
        "made_by": f"polyclinic {VERSION}",
        "classes": list(task.classes),
        "regions": {name: list(classes) for name, classes in task.regions},
        "modality": task.modality,
        "spatial_dims": task.spatial_dims,
        "channels": task.channels,
        "image_channels": task.image_channels,
        "neighbours": task.neighbours,
        "zero_fill": task.zero_fill,
        "file_spacing": None if task.spacing is None else list(task.spacing),
        "volumes_as_slices": federation.volumes_as_slices,
        "slice_axis": data.slice_axis,
        "preprocessing": {
            "orientation": "".join(letter for letter in (data.orientation or "RAS").upper() if letter in "LRPAIS"),
            "spacing": None if data.spacing is None else list(data.spacing),
            "intensity": data.intensity,
            "intensity_statistics": data.intensity_statistics,
            "site_intensity": None if site is None else {"mean": [*site.mean], "deviation": [*site.deviation]},
            "percentiles": list(data.percentiles),
            "nonzero": data.nonzero,
            "crop": None if data.crop is None else list(data.crop),
            "size": None if data.size == "auto" else list(data.size),
            "fit": data.fit,
        },
        "inference": {
            "patch": None if data.patch is None else list(data.patch),
            "overlap": evaluation.overlap,
            "batch_size": evaluation.batch_size,
            "multiples": list(workspace.network.multiples),
            "fixed_size": None,
        },
    }


def size_for_network(settings: dict[str, Any]) -> list[int] | None:
    """The size ``(*spatial)`` of what the network sees, padded to its multiples, where the recipe fixes one."""
    size, multiples = settings["inference"]["patch"] or settings["preprocessing"]["size"], settings["inference"]
    if size is None:
        return None
    return [length + -length % step for length, step in zip(size, multiples["multiples"], strict=True)]
