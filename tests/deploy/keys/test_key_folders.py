"""Folders of keys: made, renewed, accepted, removed, and what Flower makes of their files."""

from __future__ import annotations

import argparse
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from key_support import handshake
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.keys.key_folders import (
    ServerKeys,
    accept,
    accepted,
    check_site_name,
    make_demo_keys,
    make_server_keys,
    make_site_key,
    remove,
)
from polyclinic.deploy.keys.public_keys import read_public_key


def test_a_second_call_renews_the_certificate_and_keeps_the_authority(keys: ServerKeys) -> None:
    before = {path: path.read_bytes() for path in (keys.ca_cert, keys.ca_key, keys.cert, keys.key)}
    made = make_server_keys(keys.folder, ["new.example.org"], days=100)
    assert made.renewed
    assert not made.new_authority
    assert made.hosts == ("new.example.org", "localhost", "127.0.0.1")
    changed = [path.name for path, data in before.items() if path.read_bytes() != data]
    assert changed == ["server.pem", "server.key"]
    assert timedelta(days=99) < made.expires - datetime.now(UTC) <= timedelta(days=100)
    assert handshake(keys, keys.ca_cert, "new.example.org")


@pytest.mark.parametrize("gone", ["ca_key", "ca_cert"])
def test_half_an_authority_is_not_replaced(keys: ServerKeys, gone: str) -> None:
    path: Path = getattr(keys, gone)
    path.unlink()
    with pytest.raises(PolyclinicError, match=rf"{path.name}: is missing beside ca\.\w+; put it back"):
        make_server_keys(keys.folder, ["fl.example.org"])
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_private_keys_are_private_from_their_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    born: dict[str, tuple[int, int]] = {}
    open_file = os.open

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        number = open_file(path, flags, mode)
        if flags & os.O_CREAT:
            about = os.fstat(number)
            born[Path(path).name.split(".key")[0].lstrip(".")] = (about.st_mode & 0o777, about.st_size)
        return number

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(0)
    try:
        for _ in range(2):
            keys = make_server_keys(tmp_path, ["fl.example.org"]).keys
        secret, public = make_site_key(tmp_path, "north")
    finally:
        os.umask(before)
    assert born == {"ca": (0o600, 0), "server": (0o600, 0), "north": (0o600, 0)}
    for path in (keys.ca_key, keys.key, secret):
        assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ca.crt", "ca.key", "north.key", "north.pub", "server.key", "server.pem",
    ]  # fmt: skip
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert public.read_text().endswith(" north\n")


def test_flower_loads_what_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    node = pytest.importorskip("flwr.supernode.cli.flower_supernode")
    registration = pytest.importorskip("flwr.cli.supernode.register")
    arguments = pytest.importorskip("flwr.common.args")
    primitives = pytest.importorskip("flwr.supercore.primitives.asymmetric")

    keys = make_demo_keys(tmp_path / "demo", ["north"], ["127.0.0.1"])
    secret = tmp_path / "demo/hospitals/north/north.key"
    given = argparse.Namespace(auth_supernode_private_key=str(secret), auth_supernode_public_key=None)
    private, public = node._try_setup_client_authentication(given)
    registered = registration.try_load_public_key(accepted(keys.folder)["north"])
    assert registered == primitives.public_key_to_bytes(public)
    signature = primitives.sign_message(private, b"round 1")
    assert primitives.verify_signature(primitives.bytes_to_public_key(registered), b"round 1", signature)
    given = argparse.Namespace(
        ssl_ca_certfile=str(keys.ca_cert), ssl_certfile=str(keys.cert), ssl_keyfile=str(keys.key)
    )
    assert len(arguments.try_obtain_server_certificates(given)) == 3


def test_a_sites_key_is_never_overwritten(tmp_path: Path) -> None:
    secret, public = make_site_key(tmp_path, "north")
    before = secret.read_bytes(), public.read_bytes()
    with pytest.raises(PolyclinicError, match=r"north.key: is already there and is never overwritten"):
        make_site_key(tmp_path, "north")
    assert before == (secret.read_bytes(), public.read_bytes())
    secret.unlink()
    with pytest.raises(PolyclinicError, match=r"north.pub: is already there"):
        make_site_key(tmp_path, "north")
    assert not secret.exists()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../north", "a/b", "a\\b", ".north", "_x", "a b", "nörd", "a\n", "a" * 65]
)
def test_names_that_are_no_sites(tmp_path: Path, name: str) -> None:
    with pytest.raises(PolyclinicError, match="is no name of a site"):
        make_site_key(tmp_path, name)
    assert not list(tmp_path.iterdir())
    assert check_site_name("St.Mary_2-b") == "St.Mary_2-b"


def test_accepting(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    _, north = make_site_key(tmp_path / "a", "north")
    with pytest.raises(PolyclinicError, match="server: no such folder; make it with"):
        accept(folder, north)
    folder.mkdir()
    assert accepted(folder) == {}
    assert accept(folder, north) == accept(folder, north) == "north"
    assert accepted(folder) == {"north": folder / "sites/north.pub"}

    twin = shutil.copy(north, tmp_path / "south.pub")
    for replace in (False, True):
        with pytest.raises(PolyclinicError, match="already listed as 'north'"):
            accept(folder, Path(twin), replace)

    _, other = make_site_key(tmp_path / "b", "north")
    with pytest.raises(PolyclinicError, match=r"'north' is already listed with another key .* add --replace"):
        accept(folder, other)
    assert read_public_key(accepted(folder)["north"]) == read_public_key(north)
    assert accept(folder, other, replace=True) == "north"
    assert read_public_key(accepted(folder)["north"]) == read_public_key(other)

    for name in ("north-b", "alps"):
        accept(folder, make_site_key(tmp_path / "a", name)[1])
    assert list(accepted(folder)) == ["alps", "north", "north-b"]
    with pytest.raises(PolyclinicError, match="has no site 'nort'; listed are alps, north, north-b"):
        remove(folder, "nort")
    with pytest.raises(PolyclinicError, match=r"has no site '../north'"):
        remove(folder, "../north")
    remove(folder, "north")
    assert list(accepted(folder)) == ["alps", "north-b"]


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "keys.md"
    monkeypatch.chdir(tmp_path)
    exec(page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], {})
    assert "server-keys/sites/north.pub" in capsys.readouterr().out
