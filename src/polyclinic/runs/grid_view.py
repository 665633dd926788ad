"""Where one run of a grid stands, from the files that its process writes; they may be missing or half written."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyclinic.federation.stuck import stuck_briefly
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.grid_plan import GridRun


@dataclass(frozen=True)
class RunView:
    """Rounds over all parts of the protocol and those that are done, and the newest validation Dice."""

    rounds: int
    done: int
    parts: int = 1
    dice: float | None = None
    sites: int = 0
    updated: float = 0.0
    """When the newest round was done, in seconds of this machine's clock."""
    stuck: str = ""
    """Which of its sites have found nothing for long, in a few words."""

    def finished(self) -> RunView:
        """The same run, when all of its rounds are done."""
        return replace(self, done=self.rounds)


def read_view(run: GridRun) -> RunView:
    """The view of this moment, from ``live.json`` and the parts that are tested; without them nothing is done."""
    folder, rounds = RunFolder(run.folder), run.recipe.training.rounds
    tested = {path.parent.name for path in folder.path.glob("checkpoints/*/tested.json")}
    parts = max(_parts(run), len(tested), 1)
    live = _table(folder.path / "live.json")
    done = rounds * len(tested) + (_number(live, "round") or 0 if live.get("part") not in tested else 0)
    sites = live.get("sites")
    count = len(sites) if isinstance(sites, dict) else 0
    total = rounds * parts
    stuck = stuck_briefly(_number(live, "stuck"), _stuck_sites(sites))
    return RunView(total, min(int(done), total), parts, _number(live, "dice"), count, _last_round(folder), stuck)


def recorded_seconds(run: GridRun) -> float | None:
    """What a finished run took, by its summary."""
    return _number(_table(RunFolder(run.folder).summary_file), "seconds")


def _last_round(folder: RunFolder) -> float:
    """``live.json`` changes with every site; the record grows with every round."""
    try:
        return folder.events_file.stat().st_mtime
    except OSError:
        return 0.0


def _parts(run: GridRun) -> int:
    """Trainings of the protocol; those that leave a site out are known when the run has written its splits."""
    trainings = run.recipe.protocol.trainings
    return trainings if trainings > 1 else len(list(run.folder.glob("split-*.csv")))


def _stuck_sites(sites: object) -> list[str]:
    entries = sites.items() if isinstance(sites, dict) else ()
    return [site for site, entry in entries if isinstance(entry, dict) and _number(entry, "stuck")]


def _table(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _number(table: dict[str, Any], key: str) -> float | None:
    value = table.get(key)
    return float(value) if isinstance(value, int | float) else None
