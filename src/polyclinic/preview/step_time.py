"""Seconds of a step and a prediction, measured here; what would take too long is left out with a word."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from polyclinic.core.memory import physical_memory
from polyclinic.core.seeds import generator_for
from polyclinic.core.wording import readable_bytes
from polyclinic.data.federation import Task
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.preview.rehearsal import Rehearsal
from polyclinic.preview.shape_rehearsal import Count
from polyclinic.recipe import Recipe

Tell = Callable[[str], None]

_FREE = 0.6  # of the machine's memory may be used: the estimate leaves out what operations take for a moment


@dataclass(frozen=True)
class Candidate:
    """A method whose steps may be timed."""

    recipe: Recipe
    count: Count

    @property
    def expected(self) -> float:
        """Seconds of one step and one prediction, at the pace of a real step."""
        return (self.count.step_flops + self.count.flops.inference) / self.count.pace if self.count.pace else 0.0


def seconds_of(
    candidates: Sequence[Candidate], task: Task, repeats: int, limit: float, tell: Tell = lambda _: None
) -> list[dict[str, Any]]:
    """``training`` and ``inference`` of each candidate, for one image, in about ``limit`` seconds for each.

    Where the limit leaves no room for ``repeats`` turns there is one, and where it leaves none, or the memory does not
    suffice, there are no seconds but a reason, in ``not_timed``.
    """
    results = [_result(why_not(candidate, limit)) for candidate in candidates]
    timed = [number for number, result in enumerate(results) if result["not_timed"] is None]
    in_turns = [number for number in timed if candidates[number].expected * (repeats + 1) <= limit]
    if in_turns:
        tell(f"timing {repeats} steps and predictions of each method")
    for number, result in zip(in_turns, _time([candidates[n] for n in in_turns], task, repeats), strict=True):
        results[number] = result
    for number in sorted(set(timed) - set(in_turns)):
        name, expected = candidates[number].recipe.method, candidates[number].expected
        tell(f"{name}: timing one step and one prediction, about {expected:.0f} s")
        (results[number],) = _time([candidates[number]], task, repeats=1, warm_up=False)
    return results


def why_not(candidate: Candidate, limit: float) -> str | None:
    """Why a step is not timed, or ``None``."""
    if not limit:
        return "not asked for"
    if candidate.count.scaled:
        return "its step cannot be made from shapes"
    needed = candidate.count.rehearsal.sites[0].kept
    if needed > _FREE * physical_memory():
        return (
            f"a step needs some {readable_bytes(needed)} of memory, and there are {readable_bytes(physical_memory())}"
        )
    if candidate.expected > limit:
        return f"a step and a prediction would take about {candidate.expected:.0f} s, --seconds-limit is {limit:g}"
    return None


def _time(candidates: Sequence[Candidate], task: Task, repeats: int, warm_up: bool = True) -> list[dict[str, Any]]:
    """Results of candidates that take turns; one that fails at this size, for want of memory say, has a reason."""
    steps = [candidate.count.open_step(candidate.recipe, task) for candidate in candidates]
    predicting = [partial(_prediction_seconds, step.rehearsal) for step in steps]
    try:
        inference = take_turns(predicting, repeats, warm_up)
        training = take_turns([step.seconds for step in steps], repeats, warm_up)
    except (RuntimeError, MemoryError) as error:
        return [_result(f"a step fails, {str(error).splitlines()[0]}") for _ in candidates]
    return [_result(None, *seconds) for seconds in zip(training, inference, strict=True)]


def _result(not_timed: str | None, training: Sequence[float] = (), inference: Sequence[float] = ()) -> dict[str, Any]:
    kinds = {"inference": inference, "training": training}
    rows = {kind: {"median": median(all_) if all_ else None, "all": list(all_)} for kind, all_ in kinds.items()}
    return {**rows, "not_timed": not_timed}


def take_turns(work: Sequence[Callable[[], float]], repeats: int, warm_up: bool = True) -> list[list[float]]:
    """The seconds that each work reports; all take turns, so that a noisy machine disturbs all alike."""
    taken: list[list[float]] = [[] for _ in work]
    for turn in range(-1 if warm_up else 0, repeats):  # the turn before the first warms up
        for number in range(len(work))[:: -1 if turn % 2 else 1]:
            seconds = work[number]()
            if turn >= 0:
                taken[number].append(seconds)
    return taken


def _prediction_seconds(rehearsal: Rehearsal) -> float:
    workspace = rehearsal.workspace
    network, generator = workspace.network, generator_for(workspace.recipe.seed, "cost")
    image = torch.rand(1, workspace.task.channels, *rehearsal.size, generator=generator).to(workspace.device)
    started = time.perf_counter()
    # Reading a number waits until a GPU is done.
    float(predict_probabilities(network, image, multiple=network.multiples).flatten()[0])
    return time.perf_counter() - started
