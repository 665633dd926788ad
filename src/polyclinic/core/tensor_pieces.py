"""Large tensors piece by piece, so that what several operations touch stays in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 2**17  # numbers: half a megabyte in single precision, and calls are still rare


def in_pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same piece of each of some tensors with one shape, flat ``(value,)``; of contiguous tensors, views."""
    if tensors[0].numel() <= PIECE:
        yield tensors
        return
    yield from zip(*(torch.split(tensor.reshape(-1), PIECE) for tensor in tensors), strict=True)
