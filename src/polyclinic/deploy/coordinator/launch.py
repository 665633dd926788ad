"""One start of a run on the Flower engine: the settings that the server's process finds in the run folder."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json, write_text
from polyclinic.deploy.site.simulated_site import site_names
from polyclinic.runs.folder import RunFolder


@dataclass(frozen=True)
class Launch:
    """``run`` is the name under which sites store the run's state; ``named``: Flower knows the sites by their keys."""

    run: str
    recipe: str
    sites: tuple[str, ...]
    federation: str
    named: bool = True
    resume: bool = False

    def save(self, folder: Path) -> None:
        """Write it to a run folder, and remove what an earlier start left there."""
        files = LaunchFiles(folder)
        for outdated in (files.outcome, files.pid, files.relay):
            outdated.unlink(missing_ok=True)
        write_json(files.launch, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Launch:
        """Read what ``save`` wrote."""
        table = read_json(LaunchFiles(folder).launch)
        return cls(**{**table, "sites": tuple(table["sites"])})

    @classmethod
    def from_config(cls, config: Mapping[str, Any], folder: Path) -> Launch:
        """The launch of an ordinary Flower run (``flwr run``), whose settings come from ``--run-config``."""
        from polyclinic.recipe.files import load_recipe, recipe_text

        overrides = [text for text in str(config.get("set", "")).split(";") if text.strip()]
        recipe = load_recipe(str(config["recipe"]), overrides, method=str(config.get("method") or "") or None)
        names = site_names(config.get("sites"))
        if not names:
            raise PolyclinicError("sites: name the sites that take part, such as --run-config 'sites=\"north,south\"'.")
        resume = bool(config.get("resume"))
        return cls(run_name(folder), recipe_text(recipe), tuple(names), Path(recipe.federation).name, False, resume)


class LaunchFiles:
    """Names of the files that the Flower engine adds to a run folder; all others are those of ``RunFolder``."""

    def __init__(self, folder: Path) -> None:
        run_folder = RunFolder(folder)
        self.folder = run_folder.outcome_file.parent
        self.outcome = run_folder.outcome_file
        self.reserve = self.folder / "outcome.reserve"
        """Space that is kept for the outcome, so that a full disk can be told."""
        self.launch = self.folder / "plan.json"
        self.relay = self.folder / "relay.jsonl"
        self.pid = self.folder / "server.pid"
        self.run_name = self.folder / "run.txt"
        self.superlink_log = self.folder / "superlink.log"
        self.known_sites = self.folder / "sites.json"
        """Names and keys of the sites that the gate lets in; it is there when all of them are registered."""
        self.gate_notices = self.folder / "gate.jsonl"
        """What the gate tells the coordinator."""
        self.home = self.folder / "home"
        """``FLWR_HOME`` of the SuperLink."""
        self.bundle = self.folder / "app"
        """The Flower app: a pyproject.toml and nothing else."""
        self.log = folder / "server.log"
        self.token = folder / "watch.token"
        """The secret that ``polyclinic watch`` needs from another machine."""


def run_name(folder: Path, recipe: str = "") -> str:
    """The name under which sites store their state of a run: made once, and the same for every resume.

    A run that never finished a round may start again with another recipe, and then gets a new name: sites must not
    go on with the state of the first recipe.
    """
    files = LaunchFiles(folder)
    same = not files.launch.exists() or not recipe or read_json(files.launch).get("recipe") == recipe
    if not files.run_name.exists() or (not same and not RunFolder(folder).started()):
        write_text(files.run_name, secrets.token_hex(8))
    return files.run_name.read_text(encoding="utf-8").strip()
