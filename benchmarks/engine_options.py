"""Layout, precision, compilation: a step's forward and backward pass, and a prediction, against the default, in turns.

    python benchmarks/engine_options.py         # writes benchmarks/engine_options.md; minutes, because of compilation

``channels_last`` is the recipe's ``engine.channels_last``, bfloat16 its ``training.amp``. ``torch.compile`` is not an
option of a recipe; it is here to show why.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from machine import described
from torch import Tensor

from polyclinic.components.toolbox.segmentation_loss import segmentation_loss
from polyclinic.core.machine import prepare_process
from polyclinic.data.federation import Task
from polyclinic.networks import SegmentationNetwork, build_network
from polyclinic.networks.base import Features
from polyclinic.recipe.files import make_recipe

KINDS = (((6, 3, 64, 64), 16), ((4, 3, 256, 256), 16), ((2, 1, 32, 32, 32), 8), ((2, 1, 64, 64, 64), 16))
NORMS = ("instance", "batch", "group")
Pass = Callable[[Tensor], Features]


def network_of(shape: tuple[int, ...], width: int, norm: str) -> SegmentationNetwork:
    recipe = make_recipe({"federation": "memory", "network": {"width": width, "norm": norm}})
    return build_network(Task(("background", "nucleus"), shape[1], len(shape) - 2), recipe.network, 0)


def step(network: SegmentationNetwork, forward: Pass, images: Tensor) -> None:
    network.zero_grad()
    segmentation_loss(forward(images).logits, (images.mean(1) > 0.5).long()).backward()


@torch.inference_mode()
def predict(network: SegmentationNetwork, _: Pass, images: Tensor) -> None:
    network(images)


def ratios(
    work: Callable[[SegmentationNetwork, Pass, Tensor], None],
    contenders: dict[str, tuple[SegmentationNetwork, Pass]],
    images: Tensor,
    repeats: int,
) -> dict[str, tuple[float, float]]:
    """Median seconds of each contender, and the median of its ratios to the first in the same turn."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-2, repeats):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            started = time.perf_counter()
            work(*contenders[name], images)
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    first = seconds[next(iter(contenders))]
    return {
        name: (median(times), median(a / b for a, b in zip(times, first, strict=True)))
        for name, times in seconds.items()
    }


def layout_line(shape: tuple[int, ...], width: int, norm: str, repeats: int) -> str:
    plain = network_of(shape, width, norm)
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    last = copy.deepcopy(plain).to(memory_format=layout)
    contenders = {"plain": (plain, plain.features), "last": (last, last.features)}
    images = torch.rand(shape)
    cells = []
    for work, mode in ((step, True), (predict, False)):
        plain.train(mode), last.train(mode)
        measured = ratios(work, contenders, images, repeats)
        cells += [f"{1e3 * measured['plain'][0]:.0f}", f"**{measured['last'][1]:.2f}**"]
    return f"| {'x'.join(map(str, shape))}, width {width} | {norm} | {' | '.join(cells)} |"


def precision_line(shape: tuple[int, ...], width: int, norm: str, repeats: int) -> str:
    network = network_of(shape, width, norm).train()
    contenders = {"float32": (network, network.features), "bfloat16": (network, in_bfloat16(network))}
    measured = ratios(step, contenders, torch.rand(shape), repeats)
    cells = f"{1e3 * measured['float32'][0]:.0f} | **{measured['bfloat16'][1]:.2f}**"
    return f"| {'x'.join(map(str, shape))}, width {width} | {norm} | {cells} |"


def in_bfloat16(network: SegmentationNetwork) -> Pass:
    """The network's pass as training with ``training.amp = "bfloat16"`` has it."""

    def forward(images: Tensor) -> Features:
        with torch.autocast(images.device.type, torch.bfloat16):
            return network.features(images)

    return forward


def compiled_line(shape: tuple[int, ...], width: int, norm: str, repeats: int) -> str:
    plain = network_of(shape, width, norm).train()
    twin = copy.deepcopy(plain)
    torch.compiler.reset()
    compiled = torch.compile(twin.features)
    images = torch.rand(shape)
    started = time.perf_counter()
    step(twin, compiled, images)
    first = time.perf_counter() - started
    measured = ratios(step, {"plain": (plain, plain.features), "compiled": (twin, compiled)}, images, repeats)
    seconds = f"{first:.0f} | {1e3 * measured['plain'][0]:.0f} | **{measured['compiled'][1]:.2f}**"
    return f"| {'x'.join(map(str, shape))}, width {width} | {norm} | {seconds} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="how many of the sizes, small ones first")
    arguments = parser.parse_args()
    prepare_process(1)
    kinds = KINDS[: arguments.kinds]
    layouts = [layout_line(*kind, norm, arguments.repeats) for kind in kinds for norm in NORMS]
    precisions = [precision_line(*kind, norm, arguments.repeats) for kind in kinds for norm in NORMS]
    compiled = [compiled_line(*KINDS[0], norm, arguments.repeats) for norm in NORMS[:2]]
    text = f"""# Layout, precision and compilation

Made by `python benchmarks/engine_options.py --repeats {arguments.repeats} --kinds {arguments.kinds}` on
{described()} One thread, no GPU. U-Net of depth 4, forward and backward pass of a batch (a step) and forward pass alone
(prediction). Medians of {arguments.repeats} turns, and of the ratios of one turn: below 1 is faster.

## `engine.channels_last = true`

| images | norm | step (ms) | with it, over that | prediction (ms) | with it, over that |
|---|---|---:|---:|---:|---:|
{chr(10).join(layouts)}

Instance norm needs the usual order, so every layer converts there and back.

## `training.amp = "bfloat16"`

| images | norm | step (ms) | with it, over that |
|---|---|---:|---:|
{chr(10).join(precisions)}

Convolutions are computed in bfloat16, norms and losses in float32; weights and their optimiser stay in float32. A
processor without units for bfloat16 (AVX-512 BF16, AMX) gets slower by it.

## `torch.compile`

| images | norm | first step, with compilation (s) | step (ms) | compiled, over that |
|---|---|---:|---:|---:|
{chr(10).join(compiled)}

It is no option of a recipe. On this machine it does not pay. It also takes away a promise: which of several compiled
versions of a step runs depends on the sizes and modes that a process has met before, so a run that was resumed would
not end with the bits of one that was not.
"""
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
