"""Every federated method's round over FedAvg's, beside the ratio that its passes through the network predict.

    python benchmarks/methods_cost.py             # writes benchmarks/methods_cost.md
    python benchmarks/methods_cost.py --methods moon,fedprox

Each method takes turns with FedAvg, round by round, on the same images of noise. What its passes predict are the
floating-point operations of a later round, at the sites and at the server, over those of FedAvg's, by torch's
formulas: convolutions and matrix products, forwards and backwards. What a method does beside that (pixel by pixel,
in Python, or with sorting) shows as a measured ratio above the predicted one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from machine import described
from rounds import Federation, Rounds, server_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from polyclinic.core.machine import prepare_process
from polyclinic.federation.server import Server
from polyclinic.methods.registry import methods

BASE = "fedavg"
OUTLIER = 1.15


class Strict(Rounds):
    """Half a round has no cost worth a table."""

    def on_refusal(self, round_number: int, site: str, reason: str, details: str) -> None:
        raise SystemExit(f"round {round_number}, {site}: {reason}\n{details}")


@dataclass(frozen=True)
class Cost:
    """Of one method: medians of its rounds, and of its ratios to FedAvg's rounds beside them."""

    method: str
    unlabelled: bool
    seconds: float
    ratio: float
    predicted: float

    @property
    def beside(self) -> float:
        return self.ratio / self.predicted

    def line(self) -> str:
        images = "both" if self.unlabelled else "labelled"
        return (
            f"| {self.method} | {images} | {self.seconds:.2f} | **{self.ratio:.2f}** | {self.predicted:.2f} "
            f"| {self.beside:.2f} |"
        )


class Flops(TorchDispatchMode):
    """Torch's counter without its notes on modules, which do not stand gradients inside of a loss."""

    total = 0

    def __torch_dispatch__(self, operation: Any, _: Any, inputs: Any = (), named: Any = None) -> Any:
        output = operation(*inputs, **(named or {}))
        formula = flop_registry.get(operation._overloadpacket)
        if formula is not None:
            self.total += formula(*inputs, **(named or {}), out_val=output)
        return output


def flops(server: Server) -> int:
    """Of the next round."""
    with Flops() as counter:
        server.round()
    return counter.total


def cost_of(method: str, data: Federation, rounds: int, settings: dict[str, Any]) -> Cost:
    measured = {name: Strict() for name in (BASE, method)}
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    with tempfile.TemporaryDirectory() as folder:
        servers = {n: server_of(n, settings, Path(folder) / n, data, measured[n]) for n in measured}
        unlabelled = servers[method].workspace.learns_unlabelled
        if unlabelled and not data.mixed:
            return cost_of(method, Federation(data.sites, data.images, data.size, mixed=True), rounds, settings)
        for number in range(rounds):
            for name in list(servers)[:: -1 if number % 2 else 1]:
                started = time.perf_counter()
                servers[name].round()
                if number:  # the first has neither prototypes nor previous models
                    seconds[name].append(time.perf_counter() - started)
        counted = {name: flops(server) for name, server in servers.items()}
    ratio = median(a / b for a, b in zip(seconds[method], seconds[BASE], strict=True))
    return Cost(method, unlabelled, median(seconds[method]), ratio, counted[method] / counted[BASE])


def report(costs: list[Cost], data: Federation, arguments: argparse.Namespace) -> str:
    outliers = [f"{cost.method} ({cost.beside:.2f})" for cost in costs if cost.beside > OUTLIER]
    listed = ", ".join(outliers) or "none"
    return f"""# What methods cost

Made by `python benchmarks/methods_cost.py --rounds {arguments.rounds}` on {described()}
One thread, in one process. {data.sites} sites of {data.images} labelled RGB images of {data.size}x{data.size}, and as
many unlabelled ones for the methods that learn from both; one local epoch, batch 6, Adam, U-Net of width
{arguments.width} and depth 4. Each method takes turns with FedAvg on the same sites, round by round; medians of
{arguments.rounds - 1} rounds after the first, and of the ratios of neighbouring rounds. *Predicted* are the
floating-point operations of a round (convolutions and matrix products) over FedAvg's. Where a method learns from
unlabelled images, FedAvg's round is shorter: it leaves them out.

| method | images | seconds a round | over FedAvg | predicted | measured over predicted |
|---|---|---:|---:|---:|---:|
{chr(10).join(cost.line() for cost in costs)}

More than {OUTLIER:.2f} of what their passes predict: {listed}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--images", type=int, default=24, help="labelled images at each site")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--methods", help="some of them, with commas between; by default all that are federated")
    arguments = parser.parse_args()
    prepare_process(1)
    chosen = arguments.methods.split(",") if arguments.methods else [n for n, m in methods().items() if not m.pooled]
    data = Federation(arguments.sites, arguments.images, arguments.size)
    settings = {
        "network": {"width": arguments.width, "depth": 4},
        "training": {"rounds": arguments.rounds + 2, "validate_every": arguments.rounds + 3, "batch_size": 6},
    }
    costs = []
    for method in chosen:
        if method != BASE:
            costs.append(cost_of(method, data, arguments.rounds, settings))
            print(costs[-1].line(), flush=True)
    text = report(costs, data, arguments)
    if not arguments.methods:
        Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
