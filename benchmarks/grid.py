"""A comparison of six runs: all of the machine, as by default, against one run after another.

Three methods and two seeds on the embedded nuclei, by the command line with everything that belongs to it: start-up,
reading, training, tests, tables. *One after another* is ``--jobs 1 --set engine.workers=1``: one process that trains a
site at a time. The two take turns, so that a noisy machine disturbs both alike; both must leave the same scores.

    python benchmarks/grid.py                 # writes benchmarks/grid.md
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from polyclinic.core.machine import available_cores
from polyclinic.core.version import installed_versions

WAYS = {"one after another": ("--jobs", "1", "--set", "engine.workers=1"), "by default": ()}

TEXT = """# A comparison that fills the machine

Made by `python benchmarks/grid.py --rounds {rounds} --repeats {repeats}` on {machine}, {cores} cores{load}; polyclinic
{polyclinic}, torch {torch}.
`polyclinic compare {recipe} --methods {methods} --seeds {seeds} --set training.rounds={rounds}`
from start to end, in turns with `--jobs 1 --set engine.workers=1`; medians. Both leave the same scores of every case
(asserted).

| | seconds | seconds of CPU |
|---|---:|---:|
{lines}
| **one after another over default** (median of ratios; wanted: at least 1.8 on 2 cores) | **{ratio:.2f}** | |

Ratios of the turns: {ratios}.
"""


def compare(arguments: argparse.Namespace, way: tuple[str, ...], out: Path) -> tuple[float, float]:
    """Wall and CPU seconds of one comparison."""
    command = [
        sys.executable, "-m", "polyclinic", "compare", arguments.recipe, "--methods", arguments.methods,
        "--seeds", str(arguments.seeds), "--set", f"training.rounds={arguments.rounds}", "--out", str(out), *way,
    ]  # fmt: skip
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def scores(out: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in sorted(out.glob("*/cases.csv"))}


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, list[tuple[float, float]]]:
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for turn in range(-1, arguments.repeats):  # the first one fills the caches of the disk and of prepared images
        found = {}
        for name in list(WAYS)[:: -1 if turn % 2 else 1]:
            out = folder / f"{name}-{turn}"
            seconds = compare(arguments, WAYS[name], out)
            found[name] = scores(out)
            print(f"{name}: {seconds[0]:.1f} s{' (warm-up)' if turn < 0 else ''}", flush=True)
            if turn >= 0:
                measured[name].append(seconds)
        assert found["by default"] == found["one after another"] != {}, "the two disagree"
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="demo-nuclei")
    parser.add_argument("--methods", default="fedavg,fedbn,fedprox")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    load = f" (load average {os.getloadavg()[0]:.1f} at the start)" if hasattr(os, "getloadavg") else ""
    with tempfile.TemporaryDirectory(prefix="grid-") as folder:
        os.environ.setdefault("POLYCLINIC_CACHE", f"{folder}/cache")
        measured = measure(arguments, Path(folder))
    medians = {name: [statistics.median(kind) for kind in zip(*turns, strict=True)] for name, turns in measured.items()}
    lines = [f"| {name} | {wall:.1f} | {cpu:.1f} |" for name, (wall, cpu) in medians.items()]
    ratios = [one[0] / other[0] for one, other in zip(*measured.values(), strict=True)]
    text = TEXT.format(
        **vars(arguments), machine=platform.machine(), cores=available_cores(), load=load, lines="\n".join(lines),
        polyclinic=installed_versions()["polyclinic"], torch=installed_versions()["torch"],
        ratio=statistics.median(ratios), ratios=", ".join(f"{ratio:.2f}" for ratio in ratios),
    )  # fmt: skip
    arguments.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
