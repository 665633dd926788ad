"""Randomness that depends on what is done, never on the order in which it happens to be done."""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def seed_for(seed: int, *purpose: str | int) -> int:
    """Derive a 63-bit seed from the recipe's seed and a purpose such as ``(site, round, "batches")``."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator_for(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator seeded for a purpose."""
    import torch

    return torch.Generator().manual_seed(seed_for(seed, *purpose))


def seed_torch(seed: int) -> None:
    """``torch.manual_seed``, which formats the stack once for every kind of device that this build of torch lacks."""
    import torch

    if torch.accelerator.current_accelerator() is None:
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def owner_number(site: str) -> int:
    """A number that stands for a site's name in a tensor, the same in every process."""
    return zlib.crc32(site.encode())
