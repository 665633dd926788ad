"""The privacy ledger of a site: every update that left with noise, in any run, each with the noise of its own.

``home/privacy/ledger.json`` is on the disk before an update leaves, and nothing that a server sends takes an entry
back: neither another name of a run or a part, nor another recipe, nor a repeated round. A ledger that cannot be read
lets no such update leave.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyclinic.components.toolbox.privacy.releases import releases_in
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import sync_folder, write_private
from polyclinic.core.locks import exclusive_lock
from polyclinic.exchange.messages import Tensors
from polyclinic.federation.site_store import SiteStore

_PATIENCE = 30.0  # seconds for a worker that is about to end and still writes


class Release(BaseModel):
    """An update that left with noise; ``noise`` is ``None`` for one that left before the ledger wrote it down."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    run: str
    part: str
    round: int | None
    noise: Annotated[float, Field(gt=0)] | None
    mark: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    recipe: str
    time: str


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    releases: list[Release]


@dataclass(frozen=True)
class Spending:
    """What has left so far: the noise of every update in all runs, and how many of them are of the run in question."""

    noises: tuple[float | None, ...] = ()
    of_run: int = 0


@dataclass
class PrivacyLedger:
    """Reads and extends the ledger in a site's home."""

    home: Path
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.home / "privacy" / "ledger.json"
        if not self.path.exists() and any(self._part_ledgers()):
            with suppress(PolyclinicError):  # it says so when the ledger is needed
                self._update(())

    def releases(self) -> list[Release]:
        """All entries; raises where the file cannot be read or is damaged."""
        if not self.path.exists():
            return self._update(()) if any(self._part_ledgers()) else []
        return self._read()

    def spending(self, run: str) -> Spending:
        """What has left in all runs, and the number of updates of this one."""
        releases = self.releases()
        return Spending(tuple(one.noise for one in releases), sum(one.run == run for one in releases))

    def holds(self, run: str, part: str, round_number: int) -> bool:
        """Whether a round may have released something before, so that its repetition may spend nothing."""
        of_part = [one.round for one in self.releases() if (one.run, one.part) == (run, part)]
        return round_number in of_part or None in of_part

    def enter(self, run: str, part: str, round_number: int, recipe: str, ledger: Tensors) -> None:
        """Enter what the component's ``ledger`` of a part holds and this one does not; on the disk on return.

        An update that is the same as one that left before has the same mark, and spends nothing.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._update(
            [
                Release(run=run, part=part, round=round_number, noise=one.noise, mark=one.mark, recipe=recipe, time=now)
                for one in releases_in(ledger)
                if one.noise != 0  # anybody can take that noise away: no epsilon bounds such an update
            ]
        )

    def _update(self, added: Sequence[Release]) -> list[Release]:
        """Add releases with new marks; a ledger that is not there yet begins with what older ones of runs hold."""
        with exclusive_lock(self.path.parent, "another process writes the ledger; wait for it.", _PATIENCE):
            new_marks = {one.mark for one in added}
            releases = (
                self._read() if self.path.exists() else [one for one in self._earlier() if one.mark not in new_marks]
            )
            known = {one.mark for one in releases}
            new = [one for one in added if one.mark not in known]
            if new or not self.path.exists():
                releases += new
                text = json.dumps({"releases": [one.model_dump() for one in releases]}, indent=1) + "\n"
                write_private(self.path, text.encode())
                sync_folder(self.path.parent)
        return releases

    def _read(self) -> list[Release]:
        try:
            return _File.model_validate_json(self.path.read_bytes()).releases
        except (OSError, ValidationError) as error:
            raise PolyclinicError(
                f"{self.path}: the ledger of privacy cannot be read, so no update with noise leaves; restore it from a "
                "copy (docs/explanation/privacy.md says what a new one means)."
            ) from error

    def _part_ledgers(self) -> list[Path]:
        return sorted((self.home / "runs").glob("*/*/ledger.safetensors"))

    def _earlier(self) -> list[Release]:
        """What the components' own ledgers of all runs hold."""
        releases: dict[str, Release] = {}
        for file in self._part_ledgers():
            run, part = file.parent.parent.name, file.parent.name
            time = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
            for one in releases_in(SiteStore(file.parent).ledgers().get("privacy", {})):
                if one.noise != 0:
                    releases[one.mark] = Release(
                        run=run, part=part, round=None, noise=one.noise, mark=one.mark, recipe="", time=time
                    )
        return list(releases.values())


def spending_lines(home: Path, max_epsilon: float | None) -> list[str]:
    """What a site has spent and what is left of it, in sentences; nothing where neither a limit nor a ledger is."""
    from polyclinic.components.toolbox.privacy.accounting import epsilon_of, noise_left
    from polyclinic.federation.site_policy import DELTA

    releases = PrivacyLedger(home).releases()
    if not releases and max_epsilon is None:
        return []
    updates = "1 update" if len(releases) == 1 else f"{len(releases)} updates"
    noises = [one.noise for one in releases if one.noise is not None]
    unknown = len(releases) - len(noises)
    limit = "no limit (max_epsilon)" if max_epsilon is None else f"{max_epsilon:g} allowed (max_epsilon)"
    lines = [f"privacy: {updates} in all runs spent an epsilon of {epsilon_of(noises, DELTA):.3g}, {limit}"]
    if unknown:
        lines.append(
            f"privacy: the noise of {unknown} of them is unknown; ask the coordinator (summary.json has it) and write "
            f"it in place of null into {home / 'privacy' / 'ledger.json'}"
        )
    elif max_epsilon is not None:
        least = noise_left(noises, max_epsilon, DELTA)
        left = "nothing" if least is None else f"one update with a noise of {least:.3g} or more"
        lines.append(f"privacy: left is {left}" + ("" if least is None else f", or 100 with {10 * least:.3g} or more"))
    return lines
