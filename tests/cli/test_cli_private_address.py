from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from polyclinic.cli import private_address
from polyclinic.cli.private_address import open_privately


def test_a_browser_is_given_a_private_file_and_not_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    monkeypatch.setattr(private_address.typer, "launch", launched.append)
    with open_privately("http://127.0.0.1:1/secret/"):
        (address,) = launched
        file = Path(unquote(urlsplit(address).path))
        assert "secret" not in address
        assert 'content="0;url=http://127.0.0.1:1/secret/"' in file.read_text()
        assert (file.stat().st_mode & 0o077, file.parent.stat().st_mode & 0o077) == (0, 0)
    assert not file.parent.exists()
    with open_privately("http://127.0.0.1:1/secret/", opens=False):
        assert len(launched) == 1
