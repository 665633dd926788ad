"""One real federation, many runs: compares the weights of workers and of Flower with those of one process.

``python tests/e2e/agreement.py OUT.md`` asks for every registered method and writes down the answers.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch

import polyclinic
from polyclinic.core.tensor_files import load_tensors
from polyclinic.core.version import installed_versions
from polyclinic.deploy.coordinator.launch import Launch, run_name
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import make_demo_keys
from polyclinic.deploy.processes import free_port
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import SiteSupervisor
from polyclinic.federation.observer import Observer
from polyclinic.methods.registry import methods
from polyclinic.recipe.files import load_recipe, recipe_text
from polyclinic.runs.folder import RunFolder

SITES = ("north", "south")
ROUNDS = 2


class Agreement:
    """A server and two sites with TLS and keys on 127.0.0.1, kept for as many runs as are asked for."""

    def __init__(self, folder: Path) -> None:
        from support import write_tiny_federation, write_tiny_recipe

        self.folder = folder
        federation = write_tiny_federation(folder / "federation")
        self.recipe = write_tiny_recipe(folder / "recipe.toml", federation)
        self.recipe.write_text(self.recipe.read_text() + "[data]\nsize = [16, 16]\n")
        self.supervisors: list[SiteSupervisor] = []

    def __enter__(self) -> Agreement:
        with ExitStack() as stack:
            keys = make_demo_keys(self.folder / "keys", list(SITES), ["127.0.0.1"])
            address = ListenAddress("127.0.0.1", free_port(), keys.folder)
            self.coordinator = stack.enter_context(CoordinatorSupervisor(self.folder / "server", address, Observer()))
            self.coordinator.accept_sites(SITES)
            policy = self.folder / "policy.toml"
            policy.write_text('minimum_images = 1\nper_case_metrics = "named"\nshared = ["*", "fedmix/*"]\n')
            for site in SITES:
                settings = SiteSettings(
                    site, str(self.folder / "federation"), str(self.folder / "sites" / site), str(policy)
                )
                site_keys = self.folder / "keys" / "hospitals" / site
                connection = ServerConnection(address.local, site_keys / f"{site}.key", site_keys / "ca.crt")
                self.supervisors.append(stack.enter_context(SiteSupervisor(settings, connection, lambda _: None)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def difference(self, method: str) -> str:
        """What differs from one process after two rounds, in workers and over Flower, in words; empty if nothing."""
        overrides = [f"training.rounds={ROUNDS}", f"training.validate_every={ROUNDS}"]
        name = method.replace("/", "-").replace("+", "-")
        reference = self.folder / "inprocess" / name
        polyclinic.run(self.recipe, out=reference, method=method, overrides=[*overrides, "engine.name=inprocess"])
        workers = self.folder / "workers" / name
        side_by_side = [*overrides, "engine.name=workers", "engine.workers=2"]
        polyclinic.run(self.recipe, out=workers, method=method, overrides=side_by_side)
        if different := difference_between(workers, reference):
            return f"workers: {different}"
        out = self.folder / "flower" / name
        recipe = load_recipe(self.recipe, [*overrides, "engine.name=flower"], method=method)
        launch = Launch(run_name(out), recipe_text(recipe), SITES, "federation")
        self.coordinator.serve(launch, out, on_poll=self._poll_sites)
        return difference_between(out, reference)

    def _poll_sites(self) -> None:
        for supervisor in self.supervisors:
            supervisor.poll()


def difference_between(out: Path, reference: Path) -> str:
    """What differs between two run folders, in words."""
    for event in RunFolder(out).events():
        if event["refused"]:
            return f"round {event['round'] + 1}: {event['refused']}"
    for file in ("server", "best"):
        paths = (folder / "checkpoints/all" / f"{file}.safetensors" for folder in (out, reference))
        (tensors, about), (expected, about_expected) = map(load_tensors, paths)
        if tensors.keys() != expected.keys() or about != about_expected:
            return f"{file}: other tensors or other plain data"
        wrong = [key for key in tensors if not torch.equal(tensors[key], expected[key])]
        if wrong:
            return f"{file}: {len(wrong)} of {len(tensors)} tensors differ, first {wrong[0]}"
    if (out / "cases.csv").read_text() != (reference / "cases.csv").read_text():
        return "cases.csv differs"
    return ""


def record(path: Path) -> bool:
    """Ask for every registered method that exchanges something; write a table; whether all agree."""
    asked = [name for name, method in methods().items() if not method.pooled]
    lines, fine = [], True
    with tempfile.TemporaryDirectory(prefix="agree-") as folder, Agreement(Path(folder)) as agreement:
        for name in asked:
            started = time.monotonic()
            try:
                difference = agreement.difference(name)
            except Exception as error:
                difference = f"{type(error).__name__}: {error}"
            fine &= not difference
            lines.append(f"| {name} | {difference or 'the same, bit for bit'} |")
            print(f"{name}: {difference or 'same'} ({time.monotonic() - started:.0f} s)", flush=True)
    versions = installed_versions()
    about = ", ".join(f"{key} {versions[key]}" for key in ("polyclinic", "torch", "flwr", "python"))
    pooled = ", ".join(name for name, method in methods().items() if method.pooled)
    path.write_text(
        "# Do the engines agree?\n\n"
        "Made by `make test-engines`: the in-process engine, two worker processes, and a Flower federation (a server "
        f"and two sites in processes of their own, TLS and keys, 127.0.0.1) after {ROUNDS} rounds on a tiny "
        f"federation, one thread, {platform.machine()}; {about}. Compared are all tensors of the last and the best "
        f"checkpoint and every value of `cases.csv`. Left out, because all images are in one place: {pooled}.\n\n"
        "| method | weights |\n|---|---|\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )
    return fine


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    sys.exit(0 if record(Path(sys.argv[1])) else 1)
