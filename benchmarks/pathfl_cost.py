"""What PathFL costs: a round and its bytes against FedAvg's (Table 10 of the paper).

    python benchmarks/pathfl_cost.py              # writes benchmarks/pathfl_cost.md

The network is the paper's U-Net. The methods take turns, so that a noisy machine disturbs all alike. One thread.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from statistics import median

import torch
from rounds import Federation, Rounds, take_turns

from polyclinic.core.machine import keep_freed_memory

METHODS = (
    "fedavg", "pathfl", "pathfl-afa-ssa", "pathfl-cse-ssa", "pathfl-cse-afa", "pathfl+ssa(where=sites)", "histofl",
    "fedfa", "fedheal",
)  # fmt: skip
NETWORK = {"width": 32, "depth": 3, "norm": "group", "upsample": "linear"}
TRAINING = {"batch_size": 4, "loss": "ce", "lr": 1e-4, "betas": [0.9, 0.95]}


def table(measured: dict[str, Rounds]) -> list[str]:
    """One line a method."""
    base = measured["fedavg"]
    lines = [
        "| method | seconds a round | over FedAvg | CPU seconds over FedAvg | bytes up | over FedAvg | bytes down "
        "| over FedAvg |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method, own in measured.items():
        up, down = own.bytes("up"), own.bytes("down")
        lines.append(
            f"| {method} | {median(own.wall):.2f} | **{own.over(base):.3f}** | {own.over(base, 'cpu'):.3f} "
            f"| {up:,} | **{up / base.bytes('up'):.5f}** | {down:,} | **{down / base.bytes('down'):.5f}** |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=12, help="images at each site")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1, help="local epochs; the paper has 5")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    data = Federation(arguments.sites, arguments.images, arguments.size)
    training = {**TRAINING, "local_epochs": arguments.epochs}
    measured = take_turns(METHODS, data, arguments.rounds, NETWORK, training)
    size = f"{data.size}x{data.size}"
    epochs = "one local epoch" if arguments.epochs == 1 else f"{arguments.epochs} local epochs"
    report = [
        "# What PathFL costs",
        "",
        f"Made by `python benchmarks/pathfl_cost.py` with torch {torch.__version__}, one thread, {platform.machine()}.",
        f"{data.sites} sites of {data.images} RGB images of {size}, {epochs}, batch 4, the paper's U-Net (width 32,",
        f"depth 3, 1.95 million weights), Adam. {arguments.rounds - 1} rounds after the first, which has no styles",
        "yet; the methods take turns; medians of seconds, and of the ratios of neighbouring turns. Bytes are those of",
        "a site in the last round, whose weights go down once more for validation. `pathfl-afa-ssa` is CSE alone,",
        "`pathfl-cse-ssa` AFA alone and `pathfl-cse-afa` SSA alone.",
        "",
        "Wanted of `pathfl`: at most 1.15 of FedAvg's time (1.30 in the paper) and 1.001 of its bytes (1.81 in the",
        "paper, which sends 12 MiB of noise).",
        "",
        *table(measured),
    ]
    text = "\n".join(report) + "\n"
    notes = Path(__file__).with_name("pathfl_cost_notes.md")
    text += "\n" + notes.read_text() if notes.exists() else ""
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
