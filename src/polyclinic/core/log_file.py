"""A text log that is only appended to: one line an entry, each with the local time in front."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from polyclinic.core.files import append_text


class LogFile:
    """Appends lines ``YYYY-MM-DD HH:MM:SS TEXT``, each at once, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        append_text(path, "")

    def write(self, text: str) -> str:
        """Append a line; gives it back with its time, for those who also print it."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
        append_text(self._path, line + "\n")
        return line

    def close(self) -> None:
        """Nothing is held open between two lines."""

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
