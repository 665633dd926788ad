"""Which images make up each step of a local epoch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def epoch_batches(
    labelled: Tensor, unlabelled: Tensor | None, batch_size: int, generator: torch.Generator, steps: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices of the labelled and of the unlabelled images of each step.

    Without unlabelled images an epoch is one shuffled walk over the labelled ones; the last batch may be smaller, so a
    site smaller than a batch trains too. With them both are endless shuffled streams and an epoch has
    ``(labelled + unlabelled) // (2 * batch_size) + 1`` steps, as in the released code of FedSemiDG. Where ``steps`` is
    given it is their number, and labelled images alone are an endless stream too.
    """
    others = labelled[:0] if unlabelled is None else unlabelled
    if steps is None and not len(others):
        order = labelled[torch.randperm(len(labelled), generator=generator)]
        yield from ((part, others) for part in torch.split(order, batch_size) if len(part))
        return
    streams = _stream(labelled, batch_size, generator), _stream(others, batch_size, generator)
    for _ in range(steps_per_epoch(len(labelled), len(others), batch_size, steps)):
        yield next(streams[0]), next(streams[1])


def steps_per_epoch(labelled: int, unlabelled: int, batch_size: int, steps: int | None = None) -> int:
    """Number of steps that ``epoch_batches`` gives; none without images."""
    if steps is not None:
        return steps if labelled or unlabelled else 0
    return (labelled + unlabelled) // (2 * batch_size) + 1 if unlabelled else -(-labelled // batch_size)


def _stream(indices: Tensor, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches without end, reshuffled after every walk; of nothing, empty batches."""
    waiting = indices[:0]
    while True:
        while len(indices) and len(waiting) < min(batch_size, len(indices)):
            waiting = torch.cat([waiting, indices[torch.randperm(len(indices), generator=generator)]])
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]
