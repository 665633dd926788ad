"""How training scales with worker processes and with the number of sites.

Rounds of the in-process engine and of worker processes take turns in one process, on the same sites; all must end with
the same weights, bit for bit. Seconds a site and peak memory are those of fresh processes with 10, 100 and 1000 sites.

    python benchmarks/scaling.py                 # writes benchmarks/scaling.md; about 12 minutes
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from machine import described
from overhead import TASK, synthetic_site

from polyclinic.core.machine import available_cores
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.workers import Workers
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore, StateMemory
from polyclinic.federation.workspace import build_workspace
from polyclinic.recipe.files import make_recipe

HERE = Path(__file__).resolve().parent


def server_of(folder: Path, sites: int, images: int, rounds: int, workers: int) -> Server:
    """A server over synthetic sites; 0 workers mean the in-process engine."""
    recipe = make_recipe(
        {
            "federation": "memory",
            "network": {"width": 16, "depth": 4, "norm": "instance"},
            "training": {"rounds": rounds, "batch_size": 6, "validate_every": rounds + 1},
            "engine": {"device": "cpu", "workers": max(1, workers)},
        }
    )
    workspace, memory = build_workspace(recipe, TASK), StateMemory()
    data = [synthetic_site(f"site{number:04d}", images) for number in range(sites)]
    held = {site.site: Site(site, SiteStore(folder / site.site, memory)) for site in data}
    engine = Workers(workspace, held) if workers else InProcess(workspace, held)
    return Server(workspace, engine, list(held), folder, Observer())


def with_workers(rounds: int, images: int) -> str:
    counts = [0, *range(1, available_cores() + 1)]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as scratch:
        servers = {count: server_of(Path(scratch) / str(count), 6, images, rounds, count) for count in counts}
        for number in range(rounds):
            for count in counts[:: -1 if number % 2 else 1]:
                started = time.perf_counter()
                servers[count].round()
                seconds[count].append(time.perf_counter() - started)
        first = servers[0].state.weights
        for server in servers.values():
            assert all(torch.equal(first[name], tensor) for name, tensor in server.state.weights.items())
            server.engine.close()
    lines = ["| engine | seconds a round | times faster than in-process |", "|---|---:|---:|"]
    for count in counts:
        ratio = statistics.median(a / b for a, b in zip(seconds[0][1:], seconds[count][1:], strict=True))
        name = f"{count} worker{'s' if count > 1 else ''}" if count else "in-process, one thread"
        lines.append(f"| {name} | {statistics.median(seconds[count][1:]):.3f} | {ratio:.2f} |")
    return "\n".join(lines)


def many_sites(sites: int, workers: int) -> dict[str, float]:
    """Of a fresh process: seconds a site of a round, and the peak memory of the server's process in MiB."""
    command = [sys.executable, __file__, "--many", str(sites), str(workers)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(output))


def measure_many(sites: int, workers: int) -> None:
    rounds = 4 if sites < 1000 else 3
    with tempfile.TemporaryDirectory() as scratch:
        server = server_of(Path(scratch), sites, 4, rounds, workers)
        server.round()
        started = time.perf_counter()
        while not server.done:
            server.round()
        seconds = (time.perf_counter() - started) / (rounds - 1) / sites
        server.engine.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "mib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--many", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "scaling.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.many:
        measure_many(*options.many)
        return
    text = f"""# Scaling with workers and with sites

Made by `python benchmarks/scaling.py --rounds {options.rounds} --images {options.images}`. {described()}
FedAvg, U-Net of width 16 and depth 4, RGB images of 64x64, batch 6, Adam whose state is kept.

## Workers

6 sites of {options.images} images; medians of {options.rounds - 1} rounds, which take turns in one process. All engines
end with the same weights, bit for bit (asserted).

{with_workers(options.rounds, options.images)}

## Sites

Sites of 4 images, every site in every round, in a fresh process for each line. Memory is the peak of the process that
holds the server, with the images of all sites (4 images of 64x64 are 0.2 MB a site). Each site's state is 16 MB; a
process keeps 128 MB of them in memory, so with many sites they are read from the disk again, by both engines.

| sites | engine | seconds a site | peak memory (MiB) |
|---:|---|---:|---:|
"""
    for sites in options.sites:
        for workers in (0, available_cores()):
            found = many_sites(sites, workers)
            name = f"{workers} workers" if workers else "in-process"
            text += f"| {sites} | {name} | {found['seconds']:.3f} | {found['mib']:.0f} |\n"
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
