"""Named tensors to safetensors bytes and back; the bytes may come from a hostile sender."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.safetensors_header import require_header
from polyclinic.exchange.messages import Tensors
from polyclinic.exchange.tensor_names import Blobs, join_names, split_names

_MOST_NAMES = 20_000  # tensors of a group; a large network has some hundreds
_LARGEST_HEADER = 10**7  # bytes, for that many names


def encode(tensors: Mapping[str, Tensor]) -> Blobs:
    """Tensors called ``weights/NAME`` or ``shared/COMPONENT/NAME`` as one safetensors file for each group."""
    return {
        group: save({name: tensor.detach().cpu().contiguous().numpy() for name, tensor in members.items()})
        for group, members in split_names(tensors, owned=("shared",)).items()
    }


def decode(blobs: Mapping[str, bytes]) -> Tensors:
    """The tensors by their full names; the format itself checks that shapes and bytes agree."""
    groups: dict[str, Tensors] = {}
    for group, blob in blobs.items():
        try:
            require_header(BytesIO(blob), _MOST_NAMES, _LARGEST_HEADER)
            groups[group] = load(blob)
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            # TypeError and RuntimeError are torch's: a header may declare sizes that no tensor can have.
            raise PolyclinicError(f"its record '{group}' is not in the safetensors format ({error})") from error
    return join_names(groups)
