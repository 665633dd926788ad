"""How often the intervals of a comparison hold the truth: simulated grids, whose true difference is known to be zero.

A difference is the sum of three normal draws: one of the seed, one of the case, and one of the case in the seed. Three
intervals are made of each grid: that of `compare` (over cases and seeds), that over cases alone, and the plain
percentile bootstrap that takes every test of a case for a case of its own.

    python benchmarks/interval_coverage.py       # writes benchmarks/interval_coverage.md; about two minutes
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np

from polyclinic.evaluation.resampling import Array, bootstrap_interval

SITES = {"6, 4, 2, 2": (6, 4, 2, 2), "10, 10, 10, 10": (10,) * 4, "30, 3": (30, 3), "8, 1, 8": (8, 1, 8)}
SPREADS = {"none": (0.0, 0.03, 0.03), "some": (0.01, 0.03, 0.03), "most": (0.03, 0.01, 0.01)}
SEEDS = (2, 3, 5)


def grid(rng: np.random.Generator, sizes: tuple[int, ...], seeds: int, spread: tuple[float, ...]) -> list[Array]:
    of_seed, of_case, of_both = spread
    seed = rng.normal(0, of_seed, (seeds, 1))
    return [seed + rng.normal(0, of_case, (1, size)) + rng.normal(0, of_both, (seeds, size)) for size in sizes]


def every_test_a_case(sites: list[Array], draws: int, rng: np.random.Generator) -> tuple[float, float]:
    means = [rng.choice(site.ravel(), (draws, site.size)).mean(axis=1) for site in sites]
    low, high = np.quantile(np.mean(means, axis=0), (0.025, 0.975))
    return float(low), float(high)


def coverage(sizes: tuple[int, ...], seeds: int, spread: tuple[float, ...], grids: int, draws: int) -> list[float]:
    """Shares of the grids whose interval holds zero: over cases and seeds, over cases, every test a case."""
    rng, inside = np.random.default_rng(0), np.zeros(3)
    names = list(range(seeds))
    for _ in range(grids):
        sites = grid(rng, sizes, seeds, spread)
        found = [bootstrap_interval(sites, names, over_seeds, draws) for over_seeds in (True, False)]
        found.append(every_test_a_case(sites, draws, rng))
        inside += [interval is not None and interval[0] <= 0 <= interval[1] for interval in found]
    return list(inside / grids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grids", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=1000)
    arguments = parser.parse_args()
    lines = [
        "# Coverage of intervals",
        "",
        f"Made by `python benchmarks/interval_coverage.py --grids {arguments.grids} --draws {arguments.draws}` with "
        f"numpy {version('numpy')} and scipy {version('scipy')}.",
        "The share of simulated grids whose 95 % interval holds the true difference between two methods, trained again",
        "on other cases; 0.95 is wanted. `spread of seeds` says how much of the differences comes of the seed.",
        "",
        "| cases of the sites | seeds | spread of seeds | over cases and seeds | over cases | every test a case |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for (name, sizes), seeds, (word, spread) in product(SITES.items(), SEEDS, SPREADS.items()):
        shares = coverage(sizes, seeds, spread, arguments.grids, arguments.draws)
        lines.append(f"| {name} | {seeds} | {word} | {' | '.join(f'{share:.2f}' for share in shares)} |")
        print(lines[-1], flush=True)
    lines += [
        "",
        "The interval over cases is about these trained models and not about the methods, so where seeds spread it is",
        "right that it misses them; [what the words mean](../docs/explanation/statistics.md).",
    ]
    Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
