"""The keys of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.deploy.keys.key_folders import ServerKeys, make_server_keys


@pytest.fixture
def keys(tmp_path: Path) -> ServerKeys:
    return make_server_keys(tmp_path / "server", ["fl.example.org", "10.1.2.3", "2001:db8::7"]).keys
