"""Named tensors as the bytes that travel, and back, from a sender that may have written anything."""

from __future__ import annotations

from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from polyclinic.engines.flower.wire import Blobs
from polyclinic.errors import PolyclinicError
from polyclinic.federation.messages import Tensors


def encode(tensors: Mapping[str, Tensor]) -> Blobs:
    """Tensors called ``weights/NAME`` or ``shared/COMPONENT/NAME`` by group."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        depth = 2 if name.startswith("shared/") else 1
        pieces = name.split("/", depth)
        groups.setdefault("/".join(pieces[:depth]), {})[pieces[depth]] = tensor
    return {
        group: save({name: tensor.detach().cpu().contiguous().numpy() for name, tensor in held.items()})
        for group, held in groups.items()
    }


def decode(blobs: Mapping[str, bytes]) -> Tensors:
    """The tensors by their whole names; the format itself promises that shapes and bytes agree."""
    tensors: Tensors = {}
    for group, blob in blobs.items():
        try:
            held = load(blob)
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            # The last two are torch's: a header may promise sizes that no tensor can have.
            raise PolyclinicError(f"its record '{group}' is not in the safetensors format ({error})") from error
        tensors |= {f"{group}/{name}": tensor for name, tensor in held.items()}
    return tensors
