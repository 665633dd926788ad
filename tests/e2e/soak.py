"""A long run of a large federation in which processes are killed and stopped all the time: nothing may be lost or leak.

``python tests/e2e/soak.py OUT.md [--sites 50] [--rounds 500] [--asked 50] [--pause 3]`` starts a server and its sites
as processes of their own, disturbs one of them every few seconds, and compares the result with that of an undisturbed
run in one process, bit for bit. Memory and open files of the server and of the sites are sampled. With ``--asked``
below the number of sites every round asks so many, drawn by its number; half of the disturbances hit one at work.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from real_federation import RealFederation, descendants, kill_tree

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json
from polyclinic.core.tensor_files import load_tensors
from polyclinic.core.version import installed_versions
from polyclinic.runs.folder import RunFolder

SERVER_EVERY = 60  # disturbances between two of the server
KINDS = {"worker killed": 1, "site killed": 1, "worker stopped": 4, "site stopped": 4}  # by how often they happen
RESTART_AFTER = 1.0  # seconds, as a service manager waits


@dataclass
class Sample:
    """Memory in MB and open files of one process at a time after its start."""

    role: str
    pid: int
    seconds: float
    memory: float
    files: int


@dataclass
class Soak:
    """The federation, the processes that are stopped for a while, and what was seen."""

    federation: RealFederation
    arguments: list[str]
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    at_work: int = 0
    """Disturbances of a site that was training."""
    _started: float = field(default_factory=time.monotonic)
    _stopped: dict[int, float] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)

    def run(self, pause: float, limit: float) -> None:
        """Until the server has finished; raises when that takes longer than ``limit`` seconds."""
        self.federation.server("run", *self.arguments)
        self.federation.wait_for(lambda: "listening" in self.federation.output("server"))
        for site in self.federation.sites:
            self.federation.site(site)
            time.sleep(1)  # on few cores all of them at once would take minutes to start
        # A federation that never gets to its first round would show nothing.
        self.federation.wait_for(lambda: "round 1/" in self.federation.output("server"), 1800)
        disturbance = sampling = time.monotonic()
        while True:
            now = time.monotonic()
            code = self.federation.processes["server"].poll()
            if code == 0:
                break
            assert now - self._started < limit, f"not finished within {limit} s:\n{self.federation.output('server')}"
            self._wake(now)
            self._restart(now)
            if now >= disturbance:
                disturbance = now + self.rng.uniform(0.5, 1.5) * pause
                self._disturb()
            if now >= sampling:
                sampling = now + 15
                self._sample()
            time.sleep(0.2)
        for pid in list(self._stopped):
            self._wake(float("inf"))
            self._stopped.pop(pid, None)

    def _disturb(self) -> None:
        """Kill or stop one process, of the server at times."""
        if sum(self.counts.values()) % SERVER_EVERY == SERVER_EVERY - 1:
            self.counts["server killed"] += 1
            kill_tree(self.federation.processes["server"].pid)
            return
        site = self._victim()
        process = self.federation.processes[site]
        workers = [pid for pid in descendants(process.pid) if pid != process.pid]
        (kind,) = self.rng.choices(list(KINDS), list(KINDS.values()))
        pid = process.pid if kind.startswith("site") or not workers else workers[0]
        if pid in self._stopped or process.poll() is not None:
            return
        self.counts[kind] += 1
        self.at_work += site in self._working()
        if kind == "site killed":
            kill_tree(pid)
        elif kind == "worker killed":
            _signal(pid, signal.SIGKILL)
        else:
            _signal(pid, signal.SIGSTOP)
            self._stopped[pid] = time.monotonic() + self.rng.uniform(1, 8)

    def _victim(self) -> str:
        """Any site, or one at work."""
        working = self._working()
        return self.rng.choice(working if working and self.rng.random() < 0.5 else list(self.federation.sites))

    def _working(self) -> list[str]:
        """Sites that train at this moment, as far as the server knows."""
        try:
            sites = read_json(self.federation.folder / "run" / "live.json")["sites"]
        except (OSError, PolyclinicError):
            return []
        return sorted(site for site, entry in sites.items() if entry["status"] == "training")

    def _wake(self, now: float) -> None:
        for pid, until in list(self._stopped.items()):
            if now >= until:
                _signal(pid, signal.SIGCONT)
                del self._stopped[pid]

    def _restart(self, now: float) -> None:
        """Start what was killed again, as a service manager does."""
        for name, process in list(self.federation.processes.items()):
            if process.poll() is None:
                continue
            if name not in self._due:
                self._due[name] = now + RESTART_AFTER
            elif now >= self._due[name]:
                del self._due[name]
                if name == "server":
                    self.federation.server("run", *self.arguments, "--resume")
                else:
                    self.federation.site(name)

    def _sample(self) -> None:
        now = time.monotonic() - self._started
        for name, process in self.federation.processes.items():
            for pid in descendants(process.pid):
                role = "server" if name == "server" else ("site" if pid == process.pid else "worker")
                with suppress(OSError, IndexError, ValueError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
                    if role == "server":
                        role = next((part for part in ("gate", "flwr-serverapp", "superexec") if part in command), role)
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                    self.samples.append(Sample(role, pid, now, pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files))

    def growth(self) -> list[str]:
        """For each kind of process: memory and open files in the first and the last third of the run."""
        rows = []
        end = max(sample.seconds for sample in self.samples)
        for role in sorted({sample.role for sample in self.samples}):
            # A process that has just started has not loaded everything yet.
            first_seen: dict[int, float] = {}
            for sample in self.samples:
                first_seen.setdefault(sample.pid, sample.seconds)
            settled = [s for s in self.samples if s.role == role and s.seconds - first_seen[s.pid] > 60]
            early = [s for s in settled if s.seconds < end / 3 + 60]
            late = [s for s in settled if s.seconds > 2 * end / 3]
            if early and late:
                memory = [median(s.memory for s in part) for part in (early, late)]
                files = [median(s.files for s in part) for part in (early, late)]
                most = max(s.memory for s in settled), max(s.files for s in settled)
                rows.append(
                    f"| {role} | {memory[0]:.0f} | {memory[1]:.0f} | {most[0]:.0f} | {files[0]:.0f} | {files[1]:.0f} "
                    f"| {most[1]} |"
                )
        return rows


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def difference(first: Path, second: Path) -> str | None:
    """The first tensor in which two runs differ, or ``None``."""
    for file in ("server", "best"):
        one, other = (load_tensors(run / "checkpoints/all" / f"{file}.safetensors")[0] for run in (first, second))
        if one.keys() != other.keys():
            return f"{file}: other names"
        for name, tensor in one.items():
            if not tensor.equal(other[name]):
                return f"{file}: {name}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--asked", type=int, help="sites of a round; all by default")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between two disturbances")
    parser.add_argument("--limit", type=float, default=4 * 3600.0)
    options = parser.parse_args()
    sites = [f"site-{number:02d}" for number in range(options.sites)]
    rules = [
        f"training.rounds={options.rounds}", f"training.validate_every={options.rounds}", "training.quorum=1.0",
        "training.local_epochs=1", "training.batch_size=4", "engine.grace=600", "engine.gather=600",
    ]  # fmt: skip
    options.asked = options.asked or options.sites
    if options.asked < options.sites:
        rules.append(f"training.participation={options.asked}")
    arguments = [text for rule in rules for text in ("--set", rule)]
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with RealFederation(folder, sites) as federation:
            reference = subprocess.Popen(
                [sys.executable, "-m", "polyclinic", "run", "recipe.toml", "--out", "reference", *arguments,
                 "--set", f"data.sites={sites}"],
                cwd=folder, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            assert reference.wait() == 0
            soak = Soak(federation, arguments)
            started = time.monotonic()
            soak.run(options.pause, options.limit)
            seconds = time.monotonic() - started
            events = RunFolder(folder / "run").events()
            differs = difference(folder / "run", folder / "reference")
        refused = sum(len(event["refused"]) for event in events)
        write_report(options, soak, seconds, len(events), refused, differs)
    sys.exit(1 if differs else 0)


def write_report(
    options: argparse.Namespace, soak: Soak, seconds: float, rounds: int, refused: int, differs: str | None
) -> None:
    versions = installed_versions()
    counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(soak.counts.items()))
    result = "the same, bit for bit" if differs is None else f"DIFFERENT ({differs})"
    lines = [
        "# A long run under disturbance",
        "",
        f"Made by `python tests/e2e/soak.py {options.out} --sites {options.sites} --rounds {options.rounds} "
        f"--asked {options.asked} --pause {options.pause:g}` on {platform.machine()}, {os.cpu_count()} cores; "
        f"polyclinic {versions['polyclinic']}, "
        f"flwr {versions['flwr']}, torch {versions['torch']}.",
        "",
        f"- Rounds finished: {rounds} of {options.rounds} in {seconds / 60:.0f} min; answers lost for good: {refused}.",
        f"- Every round asks {options.asked} of {options.sites} sites, drawn by its number; all sites are connected.",
        f"- Disturbances: {counts}; {soak.at_work} of a site that was training.",
        f"- Weights against the undisturbed run in one process: {result}.",
        "",
        "Resident memory (MB) and open files: medians over all processes of a kind that had run for a minute, in the",
        "first and in the last third of the run, and the most that any of them ever had.",
        "",
        "| process | MB first | MB last | MB most | files first | files last | files most |",
        "|---|---|---|---|---|---|---|",
        *soak.growth(),
    ]
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
