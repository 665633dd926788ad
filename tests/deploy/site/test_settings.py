from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.deploy.site.settings import default_home


def test_a_site_s_home_is_where_states_of_programs_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_home("north") == tmp_path / "polyclinic" / "north"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_home("north") == tmp_path / ".local" / "state" / "polyclinic" / "north"
