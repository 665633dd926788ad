"""What robust aggregation needs: updates side by side, in pieces, and statistics of every coordinate over the sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from polyclinic.components.base import Component
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.exchange.messages import Tensors, Update

_MAX_NUMBERS_AT_ONCE = 2**22  # beside the updates themselves, memory does not grow with the sites


def side_by_side(updates: Sequence[Update], name: str) -> Iterator[Tensor]:
    """One weight of all updates as ``(site, value)``, in pieces that fit."""
    rows = [update.weights[name].reshape(-1) for update in updates]
    step = max(1, _MAX_NUMBERS_AT_ONCE // len(rows))
    for start in range(0, rows[0].numel(), step):
        yield torch.stack([row[start : start + step] for row in rows])


def coordinate_wise(server: ServerRound, updates: Sequence[Update], statistic: Callable[[Tensor], Tensor]) -> Tensors:
    """New weights from a statistic of each coordinate over the sites, every site counting the same.

    ``statistic`` gets the sorted values ``(site, value)`` in double precision and returns ``(value,)``. Integers, and
    buffers under the policy ``largest``, are those of the site with the most samples, as in the mean.
    """
    mean = StreamingMean(server.buffers, server.buffer_policy)
    for update in updates:
        copied = {n: t for n, t in update.weights.items() if not mean.averages(n, t)}
        mean.add(copied, 1.0, update.samples)
    result = mean.result(server.previous)
    for name, like in updates[0].weights.items():
        if mean.averages(name, like):
            pieces = [statistic(piece.sort(0).values.double()) for piece in side_by_side(updates, name)]
            result[name] = torch.cat(pieces).reshape(like.shape).to(like.dtype) if pieces else like.clone()
    return result


def warn_once(component: Component, server: ServerRound, words: str) -> None:
    """Say something once in a run, also in one that is resumed."""
    if "said" not in component.state:
        component.state["said"] = torch.ones(())
        server.warn(f"{component.name}: {words}")
