"""What one start of the server is about: plain data that the ServerApp finds in the run folder."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json, write_text
from polyclinic.deploy.site.worker_client import site_names
from polyclinic.runs.folder import RunFolder


@dataclass(frozen=True)
class Launch:
    """``run`` is the run's name at the sites for all its life; ``named`` says that Flower knows sites by their keys."""

    run: str
    recipe: str
    sites: tuple[str, ...]
    federation: str
    named: bool = True
    resume: bool = False

    def save(self, folder: Path) -> None:
        """Write it to a run folder, with no trace of an earlier start."""
        plan = LaunchFiles(folder)
        for old in (plan.outcome, plan.pid, plan.relay):
            old.unlink(missing_ok=True)
        write_json(plan.plan, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Launch:
        """Read what ``save`` wrote."""
        table = read_json(LaunchFiles(folder).plan)
        return cls(**{**table, "sites": tuple(table["sites"])})

    @classmethod
    def from_config(cls, config: Mapping[str, Any], folder: Path) -> Launch:
        """The plan of an ordinary Flower run (``flwr run``), whose settings come from ``--run-config``."""
        from polyclinic.recipe.files import load_recipe, recipe_text

        overrides = [text for text in str(config.get("set", "")).split(";") if text.strip()]
        recipe = load_recipe(str(config["recipe"]), overrides, method=str(config.get("method") or "") or None)
        names = site_names(config.get("sites"))
        if not names:
            raise PolyclinicError("sites: name the sites that take part, such as --run-config 'sites=\"north,south\"'.")
        resume = bool(config.get("resume"))
        return cls(run_name(folder), recipe_text(recipe), tuple(names), Path(recipe.federation).name, False, resume)


class LaunchFiles:
    """Files of the Flower engine in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "flower"
        self.plan = self.folder / "plan.json"
        self.outcome = RunFolder(folder).outcome_file
        self.relay = self.folder / "relay.jsonl"
        self.pid = self.folder / "server.pid"
        self.run = self.folder / "run.txt"
        self.log = folder / "server.log"


def run_name(folder: Path, recipe: str = "") -> str:
    """The name under which sites keep their memory of a run: made once, and kept for every resume.

    A run that never finished a round may start again with another recipe; sites must not take it for the first one.
    """
    files = LaunchFiles(folder)
    same = not files.plan.exists() or not recipe or read_json(files.plan).get("recipe") == recipe
    if not files.run.exists() or (not same and not RunFolder(folder).started()):
        write_text(files.run, secrets.token_hex(8))
    return files.run.read_text(encoding="utf-8").strip()
