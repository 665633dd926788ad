"""Copies of a run's folder at every moment at which a kill could find it, and writers that choose these moments."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

Write = Callable[[], None]


class EagerWriter:
    """As if the disk were so fast that a file is there before anything else happens."""

    def submit(self, work: Write) -> None:
        work()

    def wait(self) -> None: ...

    close = wait


class LateWriter(EagerWriter):
    """As if the disk were so slow that a file is there only when somebody waits for it."""

    def __init__(self) -> None:
        self._pending: Write | None = None

    def submit(self, work: Write) -> None:
        self.wait()
        self._pending = work

    def wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()

    close = wait


WRITERS = {
    "fast disks": (EagerWriter, EagerWriter),
    "slow checkpoints": (EagerWriter, LateWriter),
    "slow disks": (LateWriter, LateWriter),
}


@contextmanager
def written_by(writers: str) -> Iterator[None]:
    """Let sites' memories and the server's checkpoints be written as early or as late as possible."""
    sites, server = WRITERS[writers]
    with (
        patch("polyclinic.engines.inprocess.BackgroundWriter", sites),
        patch("polyclinic.federation.server.BackgroundWriter", server),
    ):
        yield


@contextmanager
def copied_at_every_moment(folder: Path, copies: Path) -> Iterator[list[Path]]:
    """Copy the folder before each change of its files and at the end; two equal copies count once."""
    found: dict[str, Path] = {}

    def copy() -> None:
        if not folder.is_dir():
            return
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".part"))
        content = hashlib.sha256()
        for path in files:
            content.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
        if content.hexdigest() not in found:
            found[content.hexdigest()] = copies / f"moment-{len(found):03d}"
            shutil.copytree(folder, found[content.hexdigest()], ignore=shutil.ignore_patterns("*.part"))

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **named: Any) -> Any:
            copy()
            return change(*arguments, **named)

        return changed

    moments: list[Path] = []
    with (
        patch.object(Path, "replace", watched(Path.replace)),
        patch.object(Path, "unlink", watched(Path.unlink)),
        patch.object(os, "link", watched(os.link)),
    ):
        yield moments
    copy()
    moments += found.values()
