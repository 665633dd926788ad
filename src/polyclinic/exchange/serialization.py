"""Named tensors as the bytes that travel, and back, from a sender that may have written anything."""

from __future__ import annotations

from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors
from polyclinic.exchange.tensor_names import Blobs, join_names, split_names


def encode(tensors: Mapping[str, Tensor]) -> Blobs:
    """Tensors called ``weights/NAME`` or ``shared/COMPONENT/NAME`` by group."""
    return {
        group: save({name: tensor.detach().cpu().contiguous().numpy() for name, tensor in held.items()})
        for group, held in split_names(tensors, owned=("shared",)).items()
    }


def decode(blobs: Mapping[str, bytes]) -> Tensors:
    """The tensors by their whole names; the format itself promises that shapes and bytes agree."""
    groups: dict[str, Tensors] = {}
    for group, blob in blobs.items():
        try:
            groups[group] = load(blob)
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            # The last two are torch's: a header may promise sizes that no tensor can have.
            raise PolyclinicError(f"its record '{group}' is not in the safetensors format ({error})") from error
    return join_names(groups)
