"""The log with a timestamp in front of every line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "server.log").symlink_to("/dev/full")
    log = LogFile(tmp_path / "server.log")
    with pytest.raises(PolyclinicError, match=r"server\.log: cannot be written \(No space left on device\); free some"):
        log.write("round 1")
