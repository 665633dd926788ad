"""End to end, start-up included: polyclinic beside Flower's simulation and NVFlare's, same network, images and steps.

The measure is the two-core limit: half of what a bare loop with one thread takes for its steps alone. A contender's
share of it is the limit over its whole time, from the start of its process to its end. All take turns.

    python benchmarks/simulators.py              # writes benchmarks/simulators.md; about 40 minutes
    python benchmarks/simulators.py --nvflare /path/to/python-with-nvflare
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from machine import described
from PIL import Image

HERE = Path(__file__).resolve().parent
CORES = 2


@dataclass(frozen=True)
class Case:
    """How many sites with how many images of 64x64, and how many rounds."""

    sites: int
    images: int
    rounds: int
    width: int = 16
    depth: int = 4
    batch_size: int = 6
    turns: int = 1

    @property
    def title(self) -> str:
        return f"{self.sites} sites x {self.images} images, {self.rounds} rounds"


def case_of(text: str) -> Case:
    """Sites x images x rounds x turns, such as 6x48x5x3."""
    sites, images, rounds, turns = map(int, text.split("x"))
    return Case(sites, images, rounds, turns=turns)


def write_case(case: Case, folder: Path) -> Path:
    """The same images as PNG files for polyclinic, with one more to validate and one to test, and as arrays."""
    rng = np.random.default_rng(0)
    arrays, federation = folder / "arrays", folder / "federation"
    arrays.mkdir(parents=True)
    names = [f"site{number:04d}" for number in range(case.sites)]
    rows = ["site,image,split"]
    for name in names:
        pixels = rng.integers(0, 256, (case.images + 2, 64, 64, 3), dtype=np.uint8)
        labels = (pixels.mean(-1) > 128).astype(np.uint8)
        for kind in ("images", "labels"):
            (federation / name / kind).mkdir(parents=True)
        for index, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            Image.fromarray(image).save(federation / name / "images" / f"{index:04d}.png", compress_level=1)
            Image.fromarray(label).save(federation / name / "labels" / f"{index:04d}.png", compress_level=1)
            split = {case.images: "val", case.images + 1: "test"}.get(index, "train")
            rows.append(f"{name},{index:04d}.png,{split}")
        np.savez(
            arrays / f"{name}.npz",
            images=np.moveaxis(pixels[: case.images], -1, 1),
            labels=labels[: case.images],
        )
    (federation / "federation.toml").write_text('classes = ["background", "nucleus"]\nchannels = 3\nspatial_dims = 2\n')
    (federation / "manifest.csv").write_text("\n".join(rows) + "\n")
    about = {"folder": str(arrays), "sites": names, **vars(case)}
    (folder / "work.json").write_text(json.dumps({**about, "sites": names}))
    (folder / "recipe.toml").write_text(
        f'federation = "{federation}"\n[data]\nsize = [64, 64]\nintensity = "full-range"\n'
        f"[network]\nwidth = {case.width}\ndepth = {case.depth}\n"
        f"[training]\nrounds = {case.rounds}\nbatch_size = {case.batch_size}\nvalidate_every = {case.rounds}\n"
        f'[augmentation]\nflip = 0.0\n[policies]\noptimizer_state = "reset"\n[evaluation]\nmetrics = ["dice"]\n'
        f'[engine]\ndevice = "cpu"\n'
    )
    return folder


def timed(command: list[str], cwd: Path, env: dict[str, str]) -> tuple[float, str]:
    """Seconds of a whole process, and what it printed."""
    started = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{command} ended with code {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return seconds, done.stdout


class Contenders:
    def __init__(self, folder: Path, nvflare: str | None) -> None:
        self.folder, self.nvflare = folder, nvflare
        self.env = {**os.environ, "OMP_NUM_THREADS": "1", "CORES": str(CORES), "POLYCLINIC_CORES": str(CORES)}
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start of any contender compiles its own sources
        self.env["PYTHONPATH"] = f"{HERE / 'contenders'}{os.pathsep}{HERE.parent / 'src'}"

    def _script(self, name: str, python: str = sys.executable) -> tuple[float, str]:
        with tempfile.TemporaryDirectory() as scratch:
            env = {**self.env, "FLWR_HOME": f"{scratch}/flwr", "HOME": scratch} if "bare" not in name else self.env
            command = [python, str(HERE / "contenders" / name), str(self.folder / "work.json")]
            return timed(command, Path(scratch), env)

    def bare(self) -> float:
        """Seconds of the steps alone."""
        return float(self._script("bare.py")[1].strip().splitlines()[-1])

    def polyclinic(self) -> float:
        """Without a cache of prepared images, so that the first run of a user is measured."""
        with tempfile.TemporaryDirectory() as scratch:
            program = str(Path(sys.executable).with_name("polyclinic"))
            command = [program, "run", str(self.folder / "recipe.toml"), "--out", f"{scratch}/run"]
            return timed(command, Path(scratch), {**self.env, "POLYCLINIC_CACHE": f"{scratch}/cache"})[0]

    def flower(self) -> float:
        return self._script("flower_simulation.py")[0]

    def nvflare_simulator(self) -> float:
        assert self.nvflare is not None
        return self._script("nvflare_simulator.py", self.nvflare)[0]


def measure(case: Case, nvflare: str | None) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as scratch:
        contenders = Contenders(write_case(case, Path(scratch)), nvflare)
        names = ["bare", "polyclinic", "flower", *(["nvflare_simulator"] if nvflare else [])]
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(case.turns):
            for name in names if number == 0 else names[:3]:  # NVFlare's takes minutes: once is enough
                times[name].append(getattr(contenders, name)())
                print(f"{case.title}, turn {number + 1}: {name} {times[name][-1]:.1f} s", flush=True)
        shutil.rmtree(scratch, ignore_errors=True)
    return times


def table(case: Case, times: dict[str, list[float]]) -> str:
    titles = {
        "polyclinic": "polyclinic run",
        "flower": "Flower's simulation",
        "nvflare_simulator": "NVFlare's simulator",
    }
    limits = [seconds / CORES for seconds in times["bare"]]
    lines = [
        f"## {case.title}", "", f"{case.turns} turn{'s' if case.turns > 1 else ''}"
        f"{', NVFlare one' if 'nvflare_simulator' in times and case.turns > 1 else ''}. ",
        f"Two-core limit: {statistics.median(limits):.1f} s (half of the bare loop's steps).", "",
        "| | seconds, end to end | share of the two-core limit | polyclinic is faster by |", "|---|---:|---:|---:|",
    ]  # fmt: skip
    for name, title in titles.items():
        if name in times:
            share = statistics.median(limit / own for limit, own in zip(limits, times[name], strict=False))
            ratio = statistics.median(t / p for t, p in zip(times[name], times["polyclinic"], strict=False))
            faster = "" if name == "polyclinic" else f"{ratio:.1f}"
            lines.append(f"| {title} | {statistics.median(times[name]):.1f} | {share:.2f} | {faster} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvflare", help="a Python that has nvflare, torch and polyclinic's dependencies")
    parser.add_argument("--out", type=Path, default=HERE / "simulators.md")
    parser.add_argument("--cases", nargs="+", default=["6x48x5x3", "6x48x20x3", "100x4x20x1"], help=case_of.__doc__)
    options = parser.parse_args()
    cases = [case_of(text) for text in options.cases]
    text = f"""# End to end beside other simulators

Made by `python benchmarks/simulators.py --cases {" ".join(options.cases)}`{" with NVFlare" if options.nvflare else ""}.
{described("flwr", "ray")} FedAvg, U-Net of width 16 and depth 4, RGB
images of 64x64, batch 6, a new Adam each round, one local epoch. Contenders take turns; medians where there are several
turns. polyclinic starts without any cache, reads PNG files, checks and records every update and writes a checkpoint
each round; the others read one array a site and write nothing.

"""
    text += "\n".join(table(case, measure(case, options.nvflare if case.rounds < 20 else None)) for case in cases)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
