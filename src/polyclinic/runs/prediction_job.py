"""One image through a trained model: from its files to its mask, and probabilities, on its own grid."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Item
from polyclinic.data.preprocessing import prepare
from polyclinic.data.voxel_grid import Geometry, probabilities_on_file_grid, to_file_grid
from polyclinic.data.writers import write_label, write_probabilities
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.prediction_plan import Wanted


def carry_out(workspace: Workspace, federation: Federation, wanted: Wanted) -> str | None:
    """Write what is wanted of an image; a sentence if that cannot be done, so that other images are."""
    image = wanted.item.images[0]
    try:
        _write(workspace, federation, wanted)
    except PolyclinicError as error:
        return str(error)
    except (MemoryError, torch.OutOfMemoryError):
        return f"{image}: needs more memory than there is; use --jobs 1 or a machine with more."
    except Exception as error:  # one image of thousands must not lose the others
        reason = (str(error).strip().splitlines() or [""])[0]
        if "DefaultCPUAllocator" in reason:
            return f"{image}: needs more memory than there is; use --jobs 1 or a machine with more."
        return f"{image}: cannot be segmented ({type(error).__name__}: {reason}); look at the file, or report this."
    return None


def _write(workspace: Workspace, federation: Federation, wanted: Wanted) -> None:
    prediction, geometry = _predicted(workspace, federation, wanted.item)
    if wanted.probabilities is not None:
        probabilities = probabilities_on_file_grid(prediction, geometry)
        write_probabilities(wanted.probabilities, probabilities, wanted.item)
        classes = np.asarray(probabilities.argmax(0), dtype=np.uint8)
    else:
        classes = to_file_grid(prediction, geometry)
    if wanted.mask is not None:
        write_label(wanted.mask, classes, wanted.item)


def _predicted(workspace: Workspace, federation: Federation, item: Item) -> tuple[Tensor, Geometry]:
    """Probabilities on the prepared grid, ``(class, *spatial)`` or ``(slice, class, *plane)``, and where that lies."""
    prepared = prepare(item, federation, workspace.recipe.data)
    stacked = torch.stack([one.image for one in prepared])
    batches = torch.split(stacked, workspace.recipe.evaluation.batch_size)
    probabilities = torch.cat([workspace.predict(batch).cpu() for batch in batches])
    whole = probabilities if prepared[0].slice_index is not None else probabilities[0]
    return whole, prepared[0].geometry
