"""What the server does with an update, against reading its tensors once.

Of every update of 100 sites the server checks names, shapes and values, measures how far it moves the model, and adds
it to the mean in double precision. *Reading once* is ``torch.sum`` of every tensor: each number enters the processor
and nothing comes back. *Copying once* is ``clone``: what it takes to receive a tensor at all. The three take turns,
update by update; updates alternate between several models, so that none is in the cache from the turn before. Peak
memory is that of fresh processes with 10 and 100 sites.

    python benchmarks/aggregation.py              # writes benchmarks/aggregation.md
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from machine import described

from polyclinic.components.toolbox.streaming_mean import StreamingMean
from polyclinic.core.machine import prepare_process
from polyclinic.data.federation import Task
from polyclinic.exchange.checks import update_problem
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.federation.update_bounds import UpdateBounds
from polyclinic.networks import build_network
from polyclinic.recipe.files import make_recipe

DISTINCT = 8  # models in turns: far more than a cache holds


def model_of(width: int) -> Tensors:
    """The weights of a U-Net; of width 32 about 8 million."""
    recipe = make_recipe({"federation": "memory", "network": {"width": width}})
    network = build_network(Task(("background", "nucleus"), 3, 2), recipe.network, 0)
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def moved(model: Tensors, number: int) -> Tensors:
    generator = torch.Generator().manual_seed(number)
    return {n: t + 0.01 * torch.randn(t.shape, generator=generator) for n, t in model.items()}


class Aggregation:
    """The server's work on a round of updates, timed by its three parts."""

    def __init__(self, model: Tensors) -> None:
        self.model = model
        self.bounds = UpdateBounds(1000.0, 0, model, frozenset(), {})
        self.mean = StreamingMean()
        self.seconds: dict[str, list[float]] = {"checks": [], "norm of the change": [], "sum": []}

    def take(self, update: Update) -> None:
        started = time.perf_counter()
        assert update_problem(update, self.model, {}, 0) is None
        checked = time.perf_counter()
        assert self.bounds.accept(update) is None
        measured = time.perf_counter()
        self.mean.add(update.weights, float(update.samples), update.samples)
        moments = (started, checked, measured, time.perf_counter())
        for part, first, second in zip(self.seconds, moments, moments[1:], strict=False):
            self.seconds[part].append(second - first)


def updates(model: Tensors, sites: int) -> Iterator[Update]:
    models = [moved(model, number) for number in range(min(DISTINCT, sites))]
    for number in range(sites):
        yield Update(f"site{number:03d}", 0, models[number % len(models)], 10, 1)


def read(update: Update) -> None:
    for tensor in update.weights.values():
        tensor.sum()


def copy(update: Update) -> None:
    for tensor in update.weights.values():
        tensor.clone()


def take_turns(model: Tensors, sites: int) -> tuple[dict[str, list[float]], Aggregation]:
    aggregation = Aggregation(model)
    work: dict[str, Callable[[Update], None]] = {"read": read, "copy": copy, "aggregate": aggregation.take}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    order = list(work)
    for number, update in enumerate(updates(model, sites)):
        # Whoever comes second finds a part of the update in the cache, so everybody does in turn.
        for name in order[number % 3 :] + order[: number % 3]:
            started = time.perf_counter()
            work[name](update)
            seconds[name].append(time.perf_counter() - started)
    aggregation.mean.result(model)
    return seconds, aggregation


def peak_memory(sites: int, width: int) -> float:
    """Peak resident memory in MiB of a fresh process that aggregates updates as they come, each made for itself."""
    command = [sys.executable, __file__, "--memory-of", str(sites), "--width", str(width)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["mib"])


def measure_memory(sites: int, width: int) -> None:
    model = model_of(width)
    aggregation = Aggregation(model)
    for number in range(sites):
        aggregation.take(Update(f"site{number:03d}", 0, moved(model, number), 10, 1))
    aggregation.mean.result(model)
    print(json.dumps({"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def table(model: Tensors, arguments: argparse.Namespace) -> str:
    seconds, aggregation = take_turns(model, arguments.sites)
    numbers = sum(tensor.numel() for tensor in model.values())
    ratio = {
        name: median(a / b for a, b in zip(seconds["aggregate"], seconds[name], strict=True))
        for name in ("read", "copy")
    }
    few, many = peak_memory(10, arguments.width), peak_memory(100, arguments.width)
    parts = "\n".join(
        f"| &nbsp;&nbsp;of it: {name} | {1e3 * median(times):.2f} | |" for name, times in aggregation.seconds.items()
    )
    return f"""# Aggregation

Made by `python benchmarks/aggregation.py --sites {arguments.sites} --width {arguments.width}` on {described()}
One thread. FedAvg's mean of {arguments.sites} updates of {numbers / 1e6:.1f} million weights in {len(model)} tensors.
Medians over the updates, and of the ratios of one update's turns. *Reading once* is `torch.sum` of every tensor,
*copying once* is `clone`.

| | milliseconds an update | aggregation over it |
|---|---:|---:|
| reading once | {1e3 * median(seconds["read"]):.2f} | **{ratio["read"]:.2f}** |
| copying once | {1e3 * median(seconds["copy"]):.2f} | **{ratio["copy"]:.2f}** |
| aggregation | {1e3 * median(seconds["aggregate"]):.2f} | |
{parts}
| **all {arguments.sites} updates, seconds** | **{sum(seconds["aggregate"]):.3f}** | |

Wanted: at most 1.5 of reading once. What must move through memory sets a limit above that: the update is read three
times (it may only be added when it has been judged whole), the model before once, and the sum in double precision is
read and written, twice the size of the update each. That is eight times the bytes of one reading, and four times those
of copying once.

| sites | peak memory of the server (MiB) |
|---|---:|
| 10 | {few:.0f} |
| 100 | {many:.0f} |
| **ratio** (wanted: flat) | **{many / few:.3f}** |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--width", type=int, default=32, help="of the U-Net whose weights are aggregated")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    prepare_process(1)
    if arguments.memory_of:
        measure_memory(arguments.memory_of, arguments.width)
        return
    text = table(model_of(arguments.width), arguments)
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
