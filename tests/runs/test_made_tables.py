"""Tables for their owner alone, and what is left of damaged ones."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.made_tables import read_made, write_made


def test_a_table_comes_back_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "gallery" / "x.json"
    write_made(path, {"version": 1, "sites": {"<b>": [0.25, None]}})
    assert read_made(path) == {"version": 1, "sites": {"<b>": [0.25, None]}}
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)


def test_a_folder_that_cannot_be_made_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a folder should be")
    with pytest.raises(PolyclinicError, match="cannot be made"):
        write_made(tmp_path / "run" / "gallery" / "x.json", {})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 2}', '"version"'])
def test_what_cannot_be_used_counts_as_nothing(tmp_path: Path, text: str) -> None:
    assert read_made(tmp_path / "missing.json") == {}
    (tmp_path / "x.json").write_text(text)
    assert read_made(tmp_path / "x.json") == {}
