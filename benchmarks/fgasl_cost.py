"""What FGASL costs: its passes through the network, counted, and a round against what those passes predict.

    python benchmarks/fgasl_cost.py              # writes benchmarks/fgasl_cost.md

A FedAvg round over the same number of steps and images, single passes, and FGASL rounds take turns, so that a noisy
machine disturbs all alike. One thread.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from rounds import Federation, Rounds, server_of
from torch import Tensor

from polyclinic.core.machine import keep_freed_memory
from polyclinic.federation.server import Server
from polyclinic.networks.base import SegmentationNetwork

NETWORK = {"width": 16, "depth": 4, "norm": "batch"}
BATCH = 8
MOVING, FIXED = "fgasl, weak views move", "fgasl, weak views are fixed"
ARMS: dict[str, tuple[str, bool]] = {MOVING: ("fgasl", True), FIXED: ("fgasl", False)}


@contextmanager
def counted(student: SegmentationNetwork) -> Iterator[Counter[str]]:
    """Count images that pass forwards and backwards through encoders and decoders, of the student and of teachers."""
    found: Counter[str] = Counter()
    kind = type(student)
    encode, decode = kind.encode, kind.decode

    def note(what: str, network: SegmentationNetwork, outputs: list[Tensor]) -> list[Tensor]:
        name = f"{'student' if network is student else 'teachers'} {what}"
        images = len(outputs[-1])
        found[f"{name} forward"] += images
        if outputs[-1].requires_grad:

            def backward(_: Tensor) -> None:
                found[f"{name} backward"] += images

            outputs[-1].register_hook(backward)
        return outputs

    def encoding(network: SegmentationNetwork, images: Tensor) -> list[Tensor]:
        return note("encode", network, encode(network, images))

    def decoding(network: SegmentationNetwork, pyramid: Any) -> list[Tensor]:
        return note("decode", network, decode(network, pyramid))

    with patch.object(kind, "encode", encoding), patch.object(kind, "decode", decoding):
        yield found


def wanted(moves: bool, sites: int, steps: int, images: int) -> Counter[str]:
    """The fewest images: one pass of each network per view and step, one extra decode, the gap over all images."""
    both, own = 2 * BATCH * steps * sites, images * sites
    unlabelled = BATCH * steps * sites
    static = unlabelled + own if moves else own
    return Counter(
        {
            "student encode forward": both + own,
            "student encode backward": both,
            "student decode forward": 2 * both + own,
            "student decode backward": 2 * both,
            "teachers encode forward": unlabelled + static,
            "teachers decode forward": unlabelled + static,
        }
    )


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Passes:
    """Single passes through a network of the same kind: what a prediction is made of."""

    def __init__(self, network: SegmentationNetwork, size: int) -> None:
        self.network = network
        self.images = torch.rand(BATCH, 3, size, size)
        self.both = torch.rand(2 * BATCH, 3, size, size)

    def forward(self) -> float:
        """Seconds of an eval pass over a batch."""
        self.network.eval()
        with torch.no_grad():
            return seconds(lambda: self.network(self.images))

    def decode(self) -> float:
        """Seconds of a decode of both batches, forwards and backwards, in train mode."""
        self.network.train()
        with torch.no_grad():
            pyramid = [f.requires_grad_() for f in self.network.encode(self.both)]
        return seconds(lambda: self.network.decode(pyramid)[-1].square().mean().backward())


def measure(rounds: int, data: Federation, steps: int) -> tuple[dict[str, list[float]], dict[str, Counter[str]]]:
    """Seconds of every arm and pass, in turns, and the passes of one round of each arm."""
    training = {"rounds": rounds + 1, "validate_every": rounds + 2, "steps_per_epoch": steps}
    moves = {"flip": 0.5}
    common = {"network": NETWORK, "augmentation": moves}
    whole = Federation(data.sites, 2 * data.images, data.size)
    found: dict[str, list[float]] = {name: [] for name in ("fedavg", *ARMS, "forward", "decode")}
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        base = {**common, "training": {**training, "batch_size": 2 * BATCH}}
        servers: dict[str, Server] = {"fedavg": server_of("fedavg", base, Path(folder) / "fedavg", whole, Rounds())}
        for name, (method, geometry) in ARMS.items():
            settings = {**common, "training": {**training, "batch_size": BATCH}, "strong": {"geometry": geometry}}
            servers[name] = server_of(method, settings, Path(folder) / name, data, Rounds())
        passes = Passes(servers["fedavg"].workspace.network, data.size)
        for name, server in servers.items():
            with counted(server.workspace.network) as counts[name]:
                server.round()
        for number in range(rounds):
            turns = [(name, server.round) for name, server in servers.items()]
            for name, work in turns[:: -1 if number % 2 else 1]:
                found[name].append(seconds(work))
            found["forward"].append(median(passes.forward() for _ in range(5)))
            found["decode"].append(median(passes.decode() for _ in range(3)))
    return found, counts


def predicted(found: dict[str, list[float]], moves: bool, data: Federation, steps: int) -> list[float]:
    """Seconds of a round: FedAvg's over the same images, and the passes that FGASL adds, each turn on its own."""
    per_site = 2 * data.images / BATCH  # batches of the gap
    extra = steps * (2 if moves else 1) + 2 * per_site
    return [
        base + data.sites * (steps * decode + extra * forward)
        for base, decode, forward in zip(found["fedavg"], found["decode"], found["forward"], strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=16, help="labelled images at each site; as many are unlabelled")
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--size", type=int, default=96)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    data = Federation(arguments.sites, arguments.images, arguments.size, mixed=True)
    steps = 2 * data.images // (2 * BATCH) + 1
    found, counts = measure(arguments.rounds, data, steps)
    lines = [
        "# What FGASL costs",
        "",
        f"Made by `python benchmarks/fgasl_cost.py` with torch {torch.__version__}, one thread, {platform.machine()}.",
        f"{data.sites} sites of {data.images} labelled and {data.images} unlabelled RGB images of "
        f"{data.size}x{data.size}, {steps} steps of",
        f"{BATCH} + {BATCH} images a site and round, U-Net of width 16 and depth 4 with batch norm, Adam.",
        "",
        "## Passes",
        "",
        "Images through encoders and decoders in one round of all sites, counted, and the fewest that the equations",
        "allow: each network once per view and step, one more decode for PIA, and for the gap every image once through",
        "the trained and once through the received model, which is also the static teacher. Where weak views are fixed",
        "its outputs serve both.",
        "",
        "| pass | " + " | ".join(f"{name}: counted | fewest" for name in ARMS) + " |",
        "|---|" + "---:|" * (2 * len(ARMS)),
    ]
    fewest = {name: wanted(moves, data.sites, steps, 2 * data.images) for name, (_, moves) in ARMS.items()}
    for one in fewest[MOVING]:
        cells = " | ".join(f"{counts[name][one]} | {fewest[name][one]}" for name in ARMS)
        lines.append(f"| {one} | {cells} |")
    lines += [
        "",
        "## A round",
        "",
        "Predicted: a FedAvg round with the same number of steps over as many images, all labelled, plus the passes",
        f"that FGASL adds, timed alone on the same network. Medians of {arguments.rounds} turns after the first; the",
        "ratio is the median of the turns' ratios. Wanted: at most 1.10 of the prediction.",
        "",
        "| | seconds | predicted | ratio | over FedAvg |",
        "|---|---:|---:|---:|---:|",
        f"| fedavg, all labelled | {median(found['fedavg']):.2f} | | | 1 |",
    ]
    for name, (_, moves) in ARMS.items():
        guess = predicted(found, moves, data, steps)
        ratio = median(own / other for own, other in zip(found[name], guess, strict=True))
        over = median(own / other for own, other in zip(found[name], found["fedavg"], strict=True))
        lines.append(f"| {name} | {median(found[name]):.2f} | {median(guess):.2f} | **{ratio:.3f}** | {over:.3f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    wrong = [name for name in ARMS if counts[name] != fewest[name]]
    if wrong:
        raise SystemExit(f"more passes than needed: {', '.join(wrong)}")
    Path(__file__).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
