"""What the Flower engine adds to a round, by model size: seconds and bytes.

Three ways are measured one after another for each size, in rounds that only train (no validation):

* in process;
* Flower alone: the same bytes sent to two SuperNodes whose app gives them straight back, with Flower's own polling and
  its new process for every message, and no polyclinic;
* polyclinic over Flower: server and two sites in processes of their own.

The rest = a round over Flower, less the slowest site's own training, less what the server does in a round in process
(aggregation, checkpoint). The first round of a run is left out: it reads images and builds the network.

    python benchmarks/flower_overhead.py [--rounds N] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

import polyclinic
from polyclinic.core.version import installed_versions
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import ServerKeys, make_demo_keys
from polyclinic.deploy.processes import environment, free_port, program, run_program, start, stop
from polyclinic.exchange.serialization import encode
from polyclinic.federation.observer import Observer
from polyclinic.runs.folder import RunFolder

WIDTHS = {2: 16, 8: 32, 30: 63}
SITES = ("hospital-a", "hospital-b")

CLIENT = """
from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
"""
SERVER = """
import json, os, time
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    size, rounds, out = (context.run_config[key] for key in ("size", "rounds", "out"))
    while len(list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    seconds = []
    for number in range(rounds):
        started = time.perf_counter()
        data = os.urandom(size)  # equal pieces would travel once
        messages = [
            Message(RecordDict({"weights": ArrayRecord({"t": Array("uint8", (size,), "bytes", data)})}), node, "train")
            for node in grid.get_node_ids()
        ]
        waiting = set(grid.push_messages(messages))
        while waiting:
            for reply in grid.pull_messages(list(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
            time.sleep(0.1)
        seconds.append(time.perf_counter() - started)
    open(out, "w").write(json.dumps(seconds))
"""


TEXT = """# What the Flower engine adds to a round

Made by `python benchmarks/flower_overhead.py --rounds {rounds}` on {machine}; {about}. Two sites, TLS and keys,
127.0.0.1; two training steps of two 32x32 images, no validation; medians over the rounds after the first. Seconds.

| parameters | MB each way | in process | over Flower | slowest site | server | the rest | Flower alone | before |
|---|---|---|---|---|---|---|---|---|
{lines}

*The rest* is a round over Flower less the training of the slowest site and the server's own work as it is in process
(aggregation and checkpoint): the transfer both ways, polls, the hand-over to the site's worker, checks and audit log.
*Flower alone* sends the same bytes to two SuperNodes whose app gives them straight back: Flower's polls (an idle
SuperNode looks for messages every 3 s), its process for every message, and the transfer. *Before* is what a round over
Flower took when sites had a SuperNode and a process for each message (measured then, with a load average of 3).

Bytes: tensors travel as safetensors, whose header added {more} for one tensor each; a network of a hundred tensors adds
about 10 kB. Flower cuts what it sends into pieces of 5 MiB, so that no model is too large for it; an answer above
`engine.max_message_mb` is turned away at the server's gate.
"""
BEFORE = {2: 5.00, 8: 8.09, 30: 14.59}  # seconds of a round over Flower when each site had a SuperNode


def recipe_for(width: int, rounds: int) -> list[str]:
    return [
        "data.size=[32,32]", f"network.width={width}", f"training.rounds={rounds}", "training.steps_per_epoch=2",
        "training.batch_size=2", f"training.validate_every={rounds}", "data.sites=[hospital-a,hospital-b]", "seed=0",
    ]  # fmt: skip


def run(engine: str, overrides: list[str], out: Path) -> tuple[float, float, float, int]:
    """Seconds of a round after the first, of its slowest site, beside all sites; bytes that one site sends: medians."""
    polyclinic.run("demo-nuclei", out=out, overrides=[*overrides, f"engine.name={engine}"])
    events = [event for event in RunFolder(out).events() if event["round"]]
    slowest = [max(event["seconds"]["sites"].values()) for event in events]
    here = [event["seconds"]["training"] - sum(event["seconds"]["sites"].values()) for event in events]
    whole = median(event["seconds"]["training"] for event in events)
    return whole, median(slowest), median(here), max(events[0]["bytes_up"].values())


def flower_alone(size: int, rounds: int, folder: Path) -> float:
    """Seconds of a round in which two SuperNodes give ``size`` bytes straight back, after the first."""
    app, out = folder / "bare", folder / "bare.json"
    (app / "bare").mkdir(parents=True)
    (app / "bare" / "__init__.py").touch()
    (app / "bare" / "client.py").write_text(CLIENT)
    (app / "bare" / "server.py").write_text(SERVER)
    (app / "pyproject.toml").write_text(
        f'[project]\nname = "bare"\nversion = "1.0.0"\nlicense = "Apache-2.0"\n[tool.flwr.app]\npublisher = "bare"\n'
        f'[tool.flwr.app.components]\nserverapp = "bare.server:app"\nclientapp = "bare.client:app"\n'
        f'[tool.flwr.app.config]\nsize = {size}\nrounds = {rounds}\nout = "{out}"\n'
    )
    keys = make_demo_keys(folder / "keys", list(SITES), ["127.0.0.1"])
    address = ListenAddress("127.0.0.1", free_port(), keys.folder)
    with ExitStack() as stack, CoordinatorSupervisor(folder / "link", address, Observer()) as coordinator:
        coordinator.accept_sites(SITES)
        for site in SITES:
            own = folder / "keys" / "hospitals" / site
            log = stack.enter_context((folder / f"{site}.log").open("wb"))
            node = start(
                [program("flower-supernode"), "--root-certificates", str(ServerKeys(keys.folder).ca_cert),
                 "--auth-supernode-private-key", str(own / f"{site}.key"), "--superlink", address.local,
                 "--host", "127.0.0.1", "--port", str(free_port())],
                environment(folder / site), log,
            )  # fmt: skip
            stack.callback(stop, node)
        run_program(
            [program("flwr"), "run", str(app), "polyclinic"], environment(coordinator.files.home), "the bare app"
        )
        ends = time.monotonic() + 60 + 60 * rounds
        while not out.exists():
            if time.monotonic() > ends:
                raise SystemExit(f"the bare app did not finish; see {folder}")
            time.sleep(0.5)
    time.sleep(0.2)
    return median(json.loads(out.read_text())[1:])


def measure(millions: int, rounds: int, folder: Path) -> dict[str, Any]:
    overrides = recipe_for(WIDTHS[millions], rounds)
    here, _, server, size = run("inprocess", overrides, folder / "inprocess")
    bare = flower_alone(size, rounds, folder)
    there, slowest, _, _ = run("flower", overrides, folder / "flower")
    weights = {"weights/x": torch.zeros(size // 4)}
    return {
        "parameters": millions, "bytes": size, "wire": sum(map(len, encode(weights).values())), "inprocess": here,
        "bare": bare, "flower": there, "slowest": slowest, "server": server, "rest": there - slowest - server,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    given = parser.parse_args()
    found = []
    for millions in WIDTHS:
        with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
            found.append(measure(millions, given.rounds, Path(folder)))
            print(found[-1], flush=True)
    known = installed_versions()
    load = subprocess.run(["uptime"], capture_output=True, text=True).stdout.strip().rpartition("load")[2]
    lines = [
        f"| {one['parameters']} M | {one['bytes'] / 1e6:.1f} | {one['inprocess']:.2f} | {one['flower']:.2f} "
        f"| {one['slowest']:.2f} | {one['server']:.2f} | {one['rest']:.2f} | {one['bare']:.2f} "
        f"| {BEFORE[one['parameters']]:.2f} |"
        for one in found
    ]
    machine = f"{platform.machine()}, 2 cores, no GPU (load{load} at the end)"
    about = f"polyclinic {known['polyclinic']}, flwr {known['flwr']}, torch {known['torch']}"
    more = ", ".join(f"{(one['wire'] - one['bytes']) / one['bytes']:+.4%}" for one in found)
    given.out.write_text(
        TEXT.format(rounds=given.rounds, machine=machine, about=about, lines="\n".join(lines), more=more)
    )


if __name__ == "__main__":
    main()
