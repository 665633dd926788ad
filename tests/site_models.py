"""Random models of several sites as updates, and the coordinate-wise rules written out, for robust aggregation."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.base import Component, Context
from polyclinic.components.registry import find_component
from polyclinic.components.rounds import ServerRound
from polyclinic.exchange.messages import Update
from support import tiny_task

Models = dict[str, Tensor]


BUFFERS = frozenset({"running_mean", "num_batches_tracked"})


SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=3)


def models(count: int, shapes: list[tuple[int, ...]] | None = None, seed: int = 0, levels: int = 0) -> list[Models]:
    """Random models; few ``levels`` make ties."""
    generator = torch.Generator().manual_seed(seed)

    def values(*shape: int) -> Tensor:
        if levels:
            return torch.randint(0, levels, shape, generator=generator).float()
        return torch.randn(shape, generator=generator)

    return [
        {f"weight{i}": values(*shape) for i, shape in enumerate(shapes or [(3, 2), ()])}
        | {"running_mean": values(2), "num_batches_tracked": torch.tensor(10 * m + 1)}
        for m in range(count)
    ]


def updates_of(weights: list[Models], samples: list[int] | None = None) -> list[Update]:
    counts = samples or [1] * len(weights)
    return [Update(f"site{m}", 0, w, n, 1) for m, (w, n) in enumerate(zip(weights, counts, strict=True))]


def server_round(previous: Models, policy: str = "average") -> tuple[ServerRound, list[str]]:
    warned: list[str] = []
    network: Any = None
    server = ServerRound(
        0, 1, network, previous, (), BUFFERS, policy, torch.Generator(), torch.device("cpu"), warn=warned.append
    )
    return server, warned


def make(name: str, **chosen: Any) -> Any:
    cls = find_component(name)
    return cls(cls.Settings(**chosen), Context(tiny_task()))


def aggregated(component: Component, weights: list[Models], samples: list[int] | None = None, policy: str = "average"):  # type: ignore[no-untyped-def]
    server, warned = server_round({n: torch.zeros_like(t) for n, t in weights[0].items()}, policy)
    return component.aggregate(server, updates_of(weights, samples)), server.notes, warned


def naive_coordinates(weights: list[Models], name: str, rule: Any) -> Tensor:
    """A rule over the sorted values of the sites, one coordinate after another."""
    flat = [w[name].flatten().tolist() for w in weights]
    found = [rule(sorted(site[k] for site in flat)) for k in range(weights[0][name].numel())]
    return torch.tensor(found, dtype=torch.float64).reshape(weights[0][name].shape)


def naive_median(values: list[float]) -> float:
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
