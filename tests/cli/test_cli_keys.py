"""``polyclinic keys``: the commands, from new keys to accepted sites."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from key_support import handshake
from polyclinic.deploy.keys.key_folders import (
    ServerKeys,
    accepted,
    make_server_keys,
)
from polyclinic.deploy.keys.public_keys import read_public_key
from support import call


def test_the_way_of_a_federation_through_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    done = call("keys", "server", "server", "--host", "fl.example.org, 10.1.2.3")
    assert done.code == 0, done.err
    assert "Made the certificate authority server/ca.crt" in done.out
    assert "for fl.example.org, 10.1.2.3, localhost, 127.0.0.1." in done.out
    done = call("keys", "server", "server", "--host", "fl.example.org")
    assert "Kept the certificate authority" in done.out
    assert "Renewed the server's certificate" in done.out
    assert "No site is listed yet" in call("keys", "list", "server").out

    prints = {}
    for name in ("south", "north"):
        done = call("keys", "site", name, "--out", f"{name}-keys")
        assert done.code == 0, done.err
        prints[name] = read_public_key(Path(f"{name}-keys/{name}.pub")).fingerprint
        assert prints[name] in done.out
    done = call("keys", "accept", "server", "north-keys/north.key")
    assert done.code == 2
    assert done.err.startswith("error: north-keys/north.key: is a private key")
    done = call("keys", "accept", "server", "south-keys/south.pub", "north-keys/north.pub")
    assert done.code == 0, done.err

    done = call("keys", "list", "server")
    lines = done.out.splitlines()
    assert max(map(len, lines[2:])) <= 80
    assert [line.split() for line in lines[-2:]] == [[name, "P-384", prints[name]] for name in ("north", "south")]
    shown = json.loads(call("keys", "list", "server", "--json").out)
    assert shown["sites"][0] == {"name": "north", "curve": "P-384", "fingerprint": prints["north"]}
    assert [one["file"] for one in shown["certificates"]] == ["server/ca.crt", "server/server.pem"]
    assert shown["certificates"][1]["hosts"] == ["fl.example.org", "localhost", "127.0.0.1"]
    assert shown["warnings"] == []

    assert call("keys", "remove", "server", "north").code == 0
    done = call("keys", "remove", "server", "north")
    assert done.code == 2
    assert done.err == "error: server/sites: has no site 'north'; listed are south.\n"
    assert call("keys", "list", "nowhere").err.startswith("error: nowhere: has no keys; make them with")


def test_list_warns_of_what_ends_soon_and_of_keys_that_others_can_read(tmp_path: Path) -> None:
    keys = ServerKeys(tmp_path / "server")
    make_server_keys(keys.folder, ["fl.example.org"], days=29)
    keys.key.chmod(0o640)
    done = call("keys", "list", keys.folder)
    assert done.code == 0
    assert "server.pem expires in 28 days; renew it with 'polyclinic keys server'." in done.out
    assert f"chmod 600 {keys.key}" in done.out
    assert len(json.loads(call("keys", "list", keys.folder, "--json").out)["warnings"]) == 2


def test_demo_makes_everything_and_says_how_it_really_is(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    for sites in ("north,north", "north,", "a/b"):
        assert call("keys", "demo", folder, "--sites", sites).code == 2
    assert not folder.exists()
    done = call("keys", "demo", folder, "--sites", "north,south", "--host", "127.0.0.1")
    assert done.code == 0, done.err
    assert "each hospital makes its own key" in done.out
    keys = ServerKeys(folder / "server")
    assert list(accepted(keys.folder)) == ["north", "south"]
    for name in ("north", "south"):
        own = folder / "hospitals" / name
        assert handshake(keys, own / "ca.crt", "127.0.0.1")
        serialization.load_ssh_private_key((own / f"{name}.key").read_bytes(), None)
    again = call("keys", "demo", folder)
    assert again.code == 2
    assert "is not empty" in again.err


def test_help_loads_no_cryptography_and_its_absence_gets_a_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; from polyclinic.cli import main; sys.argv = ['polyclinic', *sys.argv[1:]]\n"
        "sys.modules['cryptography'] = None\n"
        "main()\n"
    )
    for arguments, expected in ((["keys", "--help"], 0), (["keys", "site", "north"], 2)):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
        assert done.returncode == expected, done.stderr
    assert done.stderr == "error: keys need the extra: pip install 'polyclinic[flower]'.\n"
    assert not list(tmp_path.iterdir())
