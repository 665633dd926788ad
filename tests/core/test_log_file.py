"""The log with a timestamp in front of every line."""

from __future__ import annotations

import re
from pathlib import Path

from polyclinic.core.log_file import LogFile


def test_lines_have_a_time_are_there_at_once_and_are_added_to_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "site.log"
    with LogFile(path) as log:
        line = log.write("connected to Köln")
        assert path.read_text(encoding="utf-8") == line + "\n", "flushed before the file is closed"
    with LogFile(path) as log:
        log.write("stopped")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [text[20:] for text in lines] == ["connected to Köln", "stopped"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", text[:20]) for text in lines)
