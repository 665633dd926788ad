from __future__ import annotations

import hashlib
import math

import torch

from polyclinic.components.toolbox.privacy.secret_normals import fingerprint, new_secret, normal


def naive(key: bytes, name: str, count: int) -> list[float]:
    """Box and Muller, number by number."""
    pairs = (count + 1) // 2
    stream = hashlib.shake_256(key + name.encode()).digest(16 * pairs)
    numbers = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") >> 11 for i in range(2 * pairs)]
    uniform = [(number + 1) / 2**53 for number in numbers]
    first, second = uniform[:pairs], uniform[pairs:]
    radii = [math.sqrt(-2 * math.log(u)) for u in first]
    cosines = [r * math.cos(2 * math.pi * v) for r, v in zip(radii, second, strict=True)]
    sines = [r * math.sin(2 * math.pi * v) for r, v in zip(radii, second, strict=True)]
    return (cosines + sines)[:count]


def test_the_numbers_are_box_and_mullers_of_the_stream() -> None:
    key = bytes(range(32))
    for shape in ((), (1,), (3, 5), (0,), (2, 2, 2)):
        drawn = normal(key, "w", shape)
        assert drawn.shape == shape
        assert drawn.dtype == torch.float64
        wanted = torch.tensor(naive(key, "w", drawn.numel()), dtype=torch.float64)
        torch.testing.assert_close(drawn.flatten(), wanted, rtol=1e-12, atol=1e-12)


def test_they_are_standard_normal_and_streams_have_nothing_in_common() -> None:
    keys = (b"a" * 32, b"b" * 32)
    drawn = torch.stack([normal(key, name, (200_001,)) for key in keys for name in ("v", "w")])
    for row in drawn:
        assert abs(float(row.mean())) < 0.01
        assert abs(float(row.std()) - 1) < 0.01
        assert abs(float((row.abs() > 1.959964).double().mean()) - 0.05) < 0.003
        assert abs(float((row.abs() > 3.290527).double().mean()) - 0.001) < 0.0005
        assert abs(float((row[1:] * row[:-1]).mean())) < 0.01
        half = len(row) // 2
        assert abs(float((row[:half] * row[half + 1 :]).mean())) < 0.015, "cosines and sines of the same angles"
    assert float((torch.corrcoef(drawn) - torch.eye(4)).abs().max()) < 0.01
    assert torch.equal(normal(keys[0], "v", (200_001,)), drawn[0])


def test_a_fingerprint_depends_on_everything() -> None:
    tensors = {"a": torch.zeros(2, 2).double(), "b": torch.ones(3).double()}
    first = fingerprint(b"s", "round 1", tensors)
    assert first == fingerprint(b"s", "round 1", dict(reversed(tensors.items())))
    others = [
        fingerprint(b"t", "round 1", tensors),
        fingerprint(b"s", "round 2", tensors),
        fingerprint(b"s", "round 1", {**tensors, "a": torch.zeros(4).double()}),
        fingerprint(b"s", "round 1", {**tensors, "a": torch.tensor([[0, 0], [0, 1e-300]], dtype=torch.float64)}),
        fingerprint(b"s", "round 1", {"a": tensors["a"], "c": tensors["b"]}),
    ]
    assert len({first, *others}) == 6
    assert len(first) == 32


def test_secrets_are_256_bits_and_never_twice_the_same() -> None:
    secrets = {bytes(new_secret().tolist()) for _ in range(20)}
    assert len(secrets) == 20
    assert all(len(secret) == 32 for secret in secrets)
