"""Normal numbers from a secret, so that only who holds the secret can draw them again.

They are added to an update in ``components/updates/privacy.py``.

Weights that no image moved leave as received plus noise, so a server sees some of the noise as it is. From enough
outputs of a generator for simulations (Mersenne Twister, PCG) the rest can be computed, and numpy's and torch's hold 64
to 128 bits of a seed by default. SHAKE-256 is a cryptographic stream with a key of 256 bits, and comes with Python.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

SECRET_BYTES = 32


def new_secret() -> Tensor:
    """256 bits from the operating system, as a tensor that a site's ledger can hold."""
    return as_tensor(os.urandom(SECRET_BYTES))


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a tensor."""
    return torch.tensor(list(data), dtype=torch.uint8)


def fingerprint(secret: bytes, purpose: str, tensors: Mapping[str, Tensor]) -> bytes:
    """256 bits that depend on the secret, the purpose and every value; without the secret they say nothing."""
    digest = hashlib.blake2b(key=secret, digest_size=SECRET_BYTES)
    digest.update(f"{purpose}\x1f{len(tensors)}".encode())
    for name in sorted(tensors):
        digest.update(f"\x1f{name}\x1f{tuple(tensors[name].shape)}\x1f".encode())
        digest.update(np.ascontiguousarray(tensors[name].numpy()).data)
    return digest.digest()


def normal(key: bytes, name: str, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers in double precision, by Box and Muller's transform; each name has its own stream."""
    count = int(np.prod(shape))
    pairs = (count + 1) // 2
    stream = hashlib.shake_256(key + name.encode()).digest(16 * pairs)
    bits = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    uniform = (bits + np.uint64(1)).astype(np.float64) * 2.0**-53  # above 0, as the logarithm needs, up to 1
    radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
    drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(drawn).reshape(shape)
