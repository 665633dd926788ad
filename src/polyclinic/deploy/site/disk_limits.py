"""The disk that a site's home may fill: states of old runs and prepared images make room, records never do."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from polyclinic.data.prepared_cache import PreparedCache, StoredFile, remove_unused
from polyclinic.federation.site_policy import Policy

_DAY = 24 * 3600
_KEPT = frozenset({"ledger.safetensors", "recipe.toml", "split.mark"})  # small, and what a run is bound to
Log = Callable[[str], object]


def tidy_home(home: Path, policy: Policy, run: str, log: Log, wanted: int = 0, spare_runs: bool = False) -> str | None:
    """Remove what is old, and what is too much if ``wanted`` bytes come; gives a reason if the home stays too full.

    States of runs go ``keep_runs_days`` after their last use. Over ``max_home_gb`` prepared images go first, then
    further runs, the least recently used first; ``run`` is being worked on and stays, and with ``spare_runs`` all do.
    Logs, ledgers, remembered sets of cases and secrets stay in any case, and prepared images that are in use.
    """
    runs = [folder for folder in _folders(home / "runs") if folder.name != run and any(_states(folder))]
    by_age = sorted((_last_use(folder), folder) for folder in runs)
    oldest = time.time() - policy.keep_runs_days * _DAY
    for _, folder in (entry for entry in by_age if entry[0] < oldest):
        _remove_states(folder)
        log(f"removed the states of run {folder.name}: not used for {policy.keep_runs_days:g} days (keep_runs_days)")
    limit = policy.max_home_gb * 1e9
    total = _bytes(home) + wanted
    for file in _prepared_images(home) if total > limit else ():
        if remove_unused(file.path):
            total -= file.bytes
            log(f"removed {file.path.stem}: the home is larger than max_home_gb = {policy.max_home_gb:g}")
        if total <= limit:
            break
    for _, folder in (entry for entry in by_age if total > limit and entry[0] >= oldest and not spare_runs):
        if total <= limit:
            break
        total -= _remove_states(folder)
        log(f"removed the states of run {folder.name}: the home is larger than max_home_gb = {policy.max_home_gb:g}")
    if total <= limit:
        return None
    return (
        f"the site's home would hold {total / 1e9:.3g} GB, its policy allows {policy.max_home_gb:g} (max_home_gb), and "
        "nothing more may be removed without asking; the hospital can make room or raise max_home_gb"
    )


def _prepared_images(home: Path) -> list[StoredFile]:
    """The least recently used first; none behind a link, which may lead anywhere."""
    folder = home / "cache"
    return [] if folder.is_symlink() else PreparedCache(folder, 0).stored()


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()] if folder.is_dir() else []


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder; links are not followed, one of them leads to the images."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent) / name for name in names)


def _bytes(folder: Path) -> int:
    total = 0
    for file in _files(folder):
        with suppress(OSError):  # gone meanwhile
            total += file.lstat().st_size
    return total


def _states(run: Path) -> Iterator[Path]:
    return (file for file in _files(run) if file.name not in _KEPT)


def _last_use(run: Path) -> float:
    return max((file.lstat().st_mtime for file in _states(run)), default=0.0)


def _remove_states(run: Path) -> int:
    """Remove all files of a run but its ledgers; gives the bytes."""
    freed = 0
    for file in list(_states(run)):
        freed += file.lstat().st_size
        file.unlink(missing_ok=True)
    for folder, _, _ in os.walk(run, topdown=False):
        with suppress(OSError):  # not empty: a ledger is in it
            Path(folder).rmdir()
    return freed
