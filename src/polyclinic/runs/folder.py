"""The run folder: what one execution of a recipe leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import append_text, read_json, write_json, write_text
from polyclinic.core.locks import exclusive_lock
from polyclinic.core.version import installed_versions
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import changed_keys, load_recipe, recipe_text
from polyclinic.runs.method_record import method_changes, write_method

CHANGEABLE_KEYS = (
    "training.quorum",
    "training.max_update_ratio",
    "training.stuck_after",
    "tracking.",
    "data.cache",
    "engine.workers",
    "engine.deadline",
    "engine.gather",
    "engine.grace",
    "engine.max_message_mb",
)  # change no weights
SAME_WEIGHTS = {"auto", "inprocess", "workers"}  # engines with one layout of the run folder


class RunFolder:
    """Names of the files, and how they are written so that a kill never leaves half of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe_file = path / "recipe.toml"
        self.events_file = path / "events.jsonl"
        self.cases_file = path / "cases.csv"
        self.summary_file = path / "summary.json"
        self.log_file = path / "problems.log"
        self.receipts_file = path / "receipts.jsonl"
        self.outcome_file = path / "flower" / "outcome.json"

    def cases_after(self, round_number: int | None) -> Path:
        """The values of cases at the end, or in the test after a round, counted from 1."""
        return self.cases_file if round_number is None else self.path / f"cases-round-{round_number}.csv"

    def part(self, name: str) -> Path:
        """Folder of the checkpoints of one part of the protocol."""
        return self.path / "checkpoints" / name

    def tested_file(self, part: str) -> Path:
        """Plain facts about the test of one part; its presence says that the part is done."""
        return self.part(part) / "tested.json"

    def part_cases_file(self, part: str) -> Path:
        """Every metric of every case of one part."""
        return self.part(part) / "cases.csv"

    def site(self, part: str, site: str) -> Path:
        """Folder of a site's own memory: on its own disk in a real federation."""
        return self.path / "sites" / site / part

    def sites(self, part: str) -> dict[str, Path]:
        """The folders of all sites that have one for a part, by site."""
        homes = sorted((self.path / "sites").iterdir()) if (self.path / "sites").is_dir() else []
        return {home.name: home / part for home in homes if (home / part).is_dir()}

    @contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Keep other processes out while this one works here; the lock ends with the process, however it ends.

        ``patience`` is the time to wait for a process that is about to end, in seconds.
        """
        taken = "another process is working on this run; wait for it or choose another --out."
        with exclusive_lock(self.path, taken, patience):
            yield

    def open(self, recipe: Recipe, resume: bool) -> None:
        """Start a run here, or go on with one, without the files that a kill cut short; refuse to mix two runs."""
        for abandoned in self.path.rglob(".*.part"):
            abandoned.unlink(missing_ok=True)
        if self.recipe_file.exists() and self.started():
            changed = self.changes(recipe)
            if not resume:
                other = f" of another recipe ({changed[0]} differs); " if changed else "; go on with --resume or "
                raise PolyclinicError(f"{self.path}: already holds a run{other}choose another folder with --out.")
            if changed:
                raise PolyclinicError(
                    f"{self.recipe_file}: differs from the recipe to resume in {', '.join(changed)}; "
                    "resume with the same settings or choose another folder with --out."
                )
            return
        # The recipe comes last: it is what makes the folder a run, and a kill may come in between.
        write_json(self.path / "versions.json", {"seed": recipe.seed, **installed_versions()})
        write_method(self.path, recipe.method)
        write_text(self.recipe_file, recipe_text(recipe))

    def changes(self, recipe: Recipe) -> list[str]:
        """The keys in which a recipe differs from that of the run, without those that change no weights."""
        before = load_recipe(self.recipe_file)
        changed = [key for key in changed_keys(before, recipe) if not key.startswith(CHANGEABLE_KEYS)]
        if {before.engine.name, recipe.engine.name} <= SAME_WEIGHTS and "engine.name" in changed:
            changed.remove("engine.name")
        return method_changes(self.path, changed, recipe.method, before.method)

    def write_fixed(self, name: str, text: str) -> None:
        """Write what must not change while a run lasts; a resumed or finished run must find what it started with."""
        path = self.path / name
        if self.started() and path.exists() and path.read_text(encoding="utf-8") != text:
            raise PolyclinicError(
                f"{path}: the federation's images, cases, labels or classes have changed since this run started; "
                "restore them, or start a new run in another folder with --out."
            )
        write_text(path, text)

    def begun(self) -> bool:
        """Whether a run has ever begun here; people have recipes in folders of their own, without a run."""
        about = ("versions.json", "method.json", "events.jsonl", "summary.json", "checkpoints")
        return (self.path / "live.json").exists() or (
            self.recipe_file.exists() and any((self.path / name).exists() for name in about)
        )

    def started(self) -> bool:
        """Whether a round was ever finished here; before that there is nothing to lose."""
        return any(self.path.glob("checkpoints/*/server.safetensors"))

    def events(self, part: str | None = None) -> list[dict[str, Any]]:
        """The record, one entry a round; a last line cut by a kill is left out."""
        if not self.events_file.exists():
            return []
        events = []
        for line in self.events_file.read_text(encoding="utf-8").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if part is None or event["part"] == part:
                events.append(event)
        return events

    def drop_events_after(self, part: str, done: int) -> None:
        """Drop what was recorded after the checkpoint that a run goes on from."""
        kept = [e for e in self.events() if e["part"] != part or e["round"] < done]
        if self.events_file.exists():
            write_text(self.events_file, "".join(json.dumps(event) + "\n" for event in kept))

    def add_event(self, event: dict[str, Any]) -> None:
        """Append one line to the record."""
        self._append(self.events_file, json.dumps(event) + "\n")

    def log(self, text: str) -> None:
        """Append to the log of problems, tracebacks included."""
        self._append(self.log_file, text.rstrip() + "\n")

    def _append(self, path: Path, text: str) -> None:
        append_text(path, text, "free some space and go on with --resume")

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run."""
        return dict(read_json(self.summary_file)) if self.summary_file.exists() else None
