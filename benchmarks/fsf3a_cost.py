"""What FSF3A and the losses it is compared with cost: a round against FedAvg's and the passes that each adds.

    python benchmarks/fsf3a_cost.py              # writes benchmarks/fsf3a_cost.md

Rounds of all methods and single encoder passes take turns, so that a noisy machine disturbs all alike. One thread.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rounds import Federation, Rounds, server_of

from polyclinic.core.machine import keep_freed_memory
from polyclinic.data.federation import Task
from polyclinic.networks.base import SegmentationNetwork

# Encoder passes that a step adds: without gradients, and with a backward pass.
METHODS: dict[str, tuple[int, int]] = {
    "fedavg": (0, 0),
    "feddice": (0, 0),
    "fedfocaltversky": (0, 0),
    "fsf3a-localized_contrast": (0, 0),
    "fsf3a": (2, 0),
    "fsf3a(pairing=global)": (2, 0),
    "fedinfonce": (0, 1),
    "fedsimclr": (0, 1),
    "fedswav": (0, 1),
    "fedlocalcl": (0, 1),
}
NETWORK = {"width": 16, "depth": 4, "norm": "instance"}
BATCH = 2
TASK = Task(("background", "tumour"), 4, 3)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def forward(network: SegmentationNetwork, images: torch.Tensor) -> float:
    """Seconds of an encoder pass over a batch, in eval mode without gradients."""
    network.eval()
    with torch.no_grad():
        return seconds(lambda: network.encode(images))


def with_backward(network: SegmentationNetwork, images: torch.Tensor) -> float:
    """Seconds of an encoder pass over a batch, forwards and backwards."""
    network.train()
    return seconds(lambda: network.encode(images)[-1].square().mean().backward())


def measure(rounds: int, data: Federation) -> dict[str, list[float]]:
    """Seconds of a round of every method, and of single passes, in turns; the first round is not counted."""
    training = {"rounds": rounds + 1, "validate_every": rounds + 2, "batch_size": BATCH}
    settings = {"network": NETWORK, "training": training}
    images = torch.rand(BATCH, TASK.channels, *(data.size,) * 3)
    turns: dict[str, list[float]] = {name: [] for name in (*METHODS, "forward", "with backward")}
    with tempfile.TemporaryDirectory() as folder:
        servers = {
            method: server_of(method, settings, Path(folder) / str(number), data, Rounds())
            for number, method in enumerate(METHODS)
        }
        # A network of its own: the gradients of its passes are nobody's.
        network = server_of("fedavg", settings, Path(folder) / "passes", data, Rounds()).workspace.network
        for server in servers.values():
            server.round()
        for number in range(rounds):
            for method in list(METHODS)[:: -1 if number % 2 else 1]:
                turns[method].append(seconds(servers[method].round))
            turns["forward"].append(median(forward(network, images) for _ in range(5)))
            turns["with backward"].append(median(with_backward(network, images) for _ in range(5)))
    return turns


def table(turns: dict[str, list[float]], steps: int) -> list[str]:
    """One line a method: its round, what the passes predict, and both over FedAvg's."""
    lines = [
        "| method | added passes | seconds | predicted | ratio | over FedAvg |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for method, (frozen, trained) in METHODS.items():
        predicted = [
            base + steps * (frozen * plain + trained * whole)
            for base, plain, whole in zip(turns["fedavg"], turns["forward"], turns["with backward"], strict=True)
        ]
        ratio = median(own / other for own, other in zip(turns[method], predicted, strict=True))
        over = median(own / other for own, other in zip(turns[method], turns["fedavg"], strict=True))
        added = f"{frozen} forward" if frozen else f"{trained} with backward" if trained else "none"
        times = f"{median(turns[method]):.2f} | {median(predicted):.2f}"
        lines.append(f"| {method} | {added} | {times} | **{ratio:.3f}** | {over:.3f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--volumes", type=int, default=12, help="volumes at each site")
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--size", type=int, default=48, help="voxels of a volume along each axis")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    data = Federation(arguments.sites, arguments.volumes, arguments.size, task=TASK)
    steps = data.sites * -(-data.images // BATCH)
    turns = measure(arguments.rounds, data)
    options = f"--rounds {arguments.rounds} --volumes {data.images} --size {data.size}"
    report = [
        "# What FSF3A costs",
        "",
        f"Made by `python benchmarks/fsf3a_cost.py {options}`",
        f"with torch {torch.__version__}, one thread, {platform.machine()}.",
        f"{data.sites} sites of {data.images} volumes of 4 x {data.size}^3, one local epoch, batch {BATCH}, U-Net of",
        f"width 16 and depth 4 with instance norm, Adam. {arguments.rounds} rounds after the first; the methods take",
        "turns; medians of seconds, and of the ratios of each turn.",
        "",
        "Predicted: a FedAvg round with its own loss (Dice and cross-entropy), and the encoder passes that a method",
        "adds, timed alone on the same network. Wanted of `fsf3a`: at most 1.10 of the prediction.",
        "",
        *table(turns, steps),
    ]
    text = "\n".join(report) + "\n"
    print(text)
    arguments.out.write_text(text)


if __name__ == "__main__":
    main()
