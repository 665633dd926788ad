"""The releases in the ledger of the component privacy: a mark of each, and the noise that it left with."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan

import torch
from torch import Tensor

from polyclinic.components.toolbox.privacy.secret_normals import SECRET_BYTES, as_tensor
from polyclinic.exchange.messages import Tensors


@dataclass(frozen=True)
class MarkedRelease:
    """``noise`` is the multiplier: 0 where the server can draw the noise too, ``None`` where nobody wrote it down."""

    mark: str
    noise: float | None


def add_release(ledger: Tensors, mark: bytes, noise: float) -> None:
    """Enter a release with its noise, unless one with this mark is there."""
    known = ledger.get("releases", torch.empty(0, SECRET_BYTES, dtype=torch.uint8))
    if not bool((known == as_tensor(mark)).all(1).any()):
        noises = torch.cat([_noises(ledger, len(known)), torch.tensor([noise], dtype=torch.float64)])
        known = torch.cat([known, as_tensor(mark)[None]])
        ledger["noises"] = noises
    ledger["releases"] = known


def releases_in(ledger: Tensors) -> list[MarkedRelease]:
    """All releases of a ledger, in their order."""
    marks = ledger.get("releases", torch.empty(0, SECRET_BYTES, dtype=torch.uint8))
    noises = _noises(ledger, len(marks)).tolist()
    return [
        MarkedRelease(bytes(mark).hex(), None if isnan(noise) else noise)
        for mark, noise in zip(marks.tolist(), noises, strict=True)
    ]


def _noises(ledger: Tensors, count: int) -> Tensor:
    """The noise of so many releases; older ledgers have none, so that of the first may be unknown."""
    noises = ledger.get("noises", torch.empty(0, dtype=torch.float64))[:count]
    return torch.cat([torch.full((count - len(noises),), nan, dtype=torch.float64), noises])
