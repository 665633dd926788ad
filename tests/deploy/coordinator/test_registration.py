"""Registering sites: that it works is seen in test_gate_attacks.py, with a real SuperLink."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.coordinator.registration import register_sites
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import make_demo_keys
from polyclinic.deploy.processes import free_port


def test_a_server_that_is_gone_and_a_damaged_key_get_a_sentence(tmp_path: Path) -> None:
    keys = make_demo_keys(tmp_path / "keys", ["north"], ["127.0.0.1"])
    address = ListenAddress("127.0.0.1", free_port(), keys.folder)
    with pytest.raises(PolyclinicError, match="registering north failed: "):
        register_sites(address, {"north": keys.sites / "north.pub"})
    (keys.sites / "north.pub").write_text("no key")
    with pytest.raises(PolyclinicError, match=r"north\.pub: not an OpenSSH public key"):
        register_sites(address, {"north": keys.sites / "north.pub"})
