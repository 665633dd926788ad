"""A real federation for tests: a server and sites as processes of their own, with TLS and keys, on 127.0.0.1.

Every site has a folder with nothing but its own images. Every wait is bounded, every process is ended by its id.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from interrupts import heed_interrupts

from polyclinic.core.tensor_files import load_tensors
from polyclinic.deploy.keys.key_folders import make_demo_keys
from polyclinic.deploy.processes import free_port
from support import assert_same, write_tiny_federation, write_tiny_recipe

POLYCLINIC = [str(Path(sys.executable).with_name("polyclinic"))]
POLICY = 'minimum_images = 1\nper_case_metrics = "named"\n'


class RealFederation:
    """``with RealFederation(folder) as federation``: keys and data for two sites; nothing runs until it is started."""

    def __init__(self, folder: Path, sites: Sequence[str] = ("north", "south")) -> None:
        self.folder, self.sites = folder, tuple(sites)
        self.port = free_port()
        self.whole = write_tiny_federation(folder / "whole")
        for extra in self.sites:
            if not (self.whole / extra).exists():
                shutil.copytree(self.whole / "north", self.whole / extra)
        self.keys = folder / "keys"
        make_demo_keys(self.keys, [*self.sites, "stranger"], ["127.0.0.1"])
        (self.keys / "server" / "sites" / "stranger.pub").unlink()
        for site in self.sites:
            shutil.copytree(self.whole / site, folder / site / "data" / site)
            shutil.copy(self.whole / "federation.toml", folder / site / "data")
            (folder / site / "policy.toml").write_text(POLICY)
        self.recipe = write_tiny_recipe(folder / "recipe.toml", self.whole)
        self.recipe.write_text(self.recipe.read_text() + "[data]\nsize = [16, 16]\n")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> RealFederation:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            kill_tree(process.pid)
            process.wait(120)

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A polyclinic command whose output goes to ``NAME.out``."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [*POLYCLINIC, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.folder,
                env=environment, start_new_session=True, preexec_fn=heed_interrupts,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def site(self, name: str, *more: str, key: str | None = None) -> subprocess.Popen[bytes]:
        """Start a site."""
        site_keys = self.keys / "hospitals" / (key or name)
        return self.start(
            name, "site", "--data", f"{name}/data", "--server", f"127.0.0.1:{self.port}", "--name", name,
            "--key", str(site_keys / f"{key or name}.key"), "--ca", str(site_keys / "ca.crt"), "--home", f"{name}/home",
            "--policy", f"{name}/policy.toml", *more,
        )  # fmt: skip

    def server(self, out: str = "run", *more: str) -> subprocess.Popen[bytes]:
        """Start the coordinator."""
        return self.start(
            "server", "server", "recipe.toml", "--keys", str(self.keys / "server"), "--out", out,
            "--host", "127.0.0.1", "--port", str(self.port), *more,
        )  # fmt: skip

    def finish(self, name: str = "server", patience: float = 400, code: int = 0) -> str:
        """Wait for a process to end as expected; give back all that it said."""
        try:
            ended = self.processes[name].wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end within {patience} s:\n{self.everything()}") from None
        assert ended == code, f"{name} ended with {ended}:\n{self.everything()}"
        return self.output(name)

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(encoding="utf-8", errors="replace")

    def everything(self) -> str:
        texts = [f"--- {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.folder.glob("*.out"))]
        logs = self.folder.glob("*/flower/superlink.log")
        return "\n".join([*texts, *(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)])

    def wait_for(self, what: Callable[[], bool], patience: float = 300) -> None:
        """Wait until something is so."""
        ends = time.monotonic() + patience
        while not what():
            assert time.monotonic() < ends, f"it did not happen within {patience} s:\n{self.everything()}"
            time.sleep(0.1)

    def same_as_in_process(self, out: str, *arguments: str) -> None:
        """The same recipe in one process gives the same weights, bit for bit.

        That process is another one: a plugin would stay known in this one.
        """
        reference = self.folder / "reference" / out
        command = [*POLYCLINIC, "run", "recipe.toml", "--out", str(reference), *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        for file in ("server", "best"):
            paths = (folder / "checkpoints/all" / f"{file}.safetensors" for folder in (self.folder / out, reference))
            (weights, about), (expected, about_expected) = map(load_tensors, paths)
            assert_same(weights, expected)
            assert about == about_expected


def descendants(pid: int) -> list[int]:
    """A process and all that it started, whatever sessions they made for themselves."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    family, todo = [], [pid]
    while todo:
        member = todo.pop()
        family.append(member)
        todo += parents.get(member, [])
    return family


def kill_tree(pid: int) -> None:
    """kill -9 for a process and everything under it, as when the machine loses its power."""
    for member in reversed(descendants(pid)):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)
