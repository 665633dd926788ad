"""How long polyclinic takes to start: imports, help, and a run that has next to nothing to do.

All commands take turns, each in a process of its own, so that a noisy machine disturbs all alike; the ratios are
medians over the turns. The tiny run is one round of `demo-nuclei` at its smallest site (16 images of 64x64, one epoch,
validation, test with all default metrics). Its first start finds an empty cache, so it also draws the demo's 136
images and prepares those of its site; the second finds what the first has left.

    python benchmarks/startup.py                 # writes benchmarks/startup.md
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
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

NOTHING, TORCH, MONAI = "python -c pass", "import torch", "import torch, monai"
HELP, FIRST, SECOND = "polyclinic --help", "polyclinic run, first", "polyclinic run, second"
GOAL = 1.5  # of import torch, monai


@dataclass(frozen=True)
class Cost:
    """Seconds on the wall and of a processor."""

    wall: float
    cpu: float


def tiny_run(folder: Path) -> list[str]:
    keys = ["training.rounds=1", 'data.sites=["hospital-d"]']
    options = [text for key in keys for text in ("--set", key)]
    return ["-m", "polyclinic", "run", "demo-nuclei", *options, "--out", str(folder)]


def timed(arguments: list[str], cache: Path) -> Cost:
    environment = {**os.environ, "POLYCLINIC_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode beside it
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def take_turn() -> dict[str, Cost]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        commands = {
            NOTHING: ["-c", "pass"],
            TORCH: ["-c", "import torch"],
            MONAI: ["-c", "import torch, monai"],
            HELP: ["-m", "polyclinic", "--help"],
            FIRST: tiny_run(folder / "first"),
            SECOND: tiny_run(folder / "second"),
        }
        return {name: timed(arguments, folder / "cache") for name, arguments in commands.items()}


def row(name: str, turns: list[dict[str, Cost]]) -> str:
    def median(of: list[float]) -> float:
        return statistics.median(of)

    wall, cpu = (median([getattr(turn[name], kind) for turn in turns]) for kind in ("wall", "cpu"))
    over = [median([turn[name].wall / turn[base].wall for turn in turns]) for base in (TORCH, MONAI)]
    return f"| `{name}` | {wall:.2f} | {cpu:.2f} | {over[0]:.2f} | {over[1]:.2f} |"


def report(turns: list[dict[str, Cost]]) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "monai", "numpy", "scipy", "pydantic"))
    rows = "\n".join(row(name, turns) for name in turns[0])
    ratios = [statistics.median(turn[name].wall / turn[MONAI].wall for turn in turns) for name in (FIRST, SECOND)]
    return f"""# Start-up

Made by `python benchmarks/startup.py --turns {len(turns)}` with Python {platform.python_version()}, {packages};
{os.cpu_count()} cores of {platform.machine()}, one thread a process. Every line of the table in every turn, one after
another; medians of {len(turns)} turns after one that is not counted. The runs train, validate and test for one round
(`demo-nuclei`, one site of 16 images); the first one of a turn also draws the demo's files.

| | seconds | CPU seconds | over `import torch` | over `import torch, monai` |
|---|---:|---:|---:|---:|
{rows}

A run imports no MONAI: **{ratios[0]:.2f}** (first) and **{ratios[1]:.2f}** (second) of the time that
`import torch, monai` takes, wanted: at most {GOAL}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    arguments = parser.parse_args()
    take_turn()  # writes bytecode and fills the system's file cache
    table = report([take_turn() for _ in range(arguments.turns)])
    arguments.out.write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
