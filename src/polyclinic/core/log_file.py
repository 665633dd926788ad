"""A text log that is only appended to: one line an entry, each with the local time in front."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType


class LogFile:
    """Appends lines ``YYYY-MM-DD HH:MM:SS TEXT`` and flushes each of them, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, text: str) -> str:
        """Append a line; gives it back with its time, for those who also print it."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
        self._file.write(line + "\n")
        self._file.flush()
        return line

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> LogFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
