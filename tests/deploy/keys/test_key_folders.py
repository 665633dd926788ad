"""Keys of a federation over a network: what OpenSSL, OpenSSH and Flower make of them, and what is refused."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.keys import certificates
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
from support import call

needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed here")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed here")


@pytest.fixture
def keys(tmp_path: Path) -> ServerKeys:
    return make_server_keys(tmp_path / "server", ["fl.example.org", "10.1.2.3", "2001:db8::7"]).keys


def handshake(server_side: ServerKeys, ca: Path, host: str) -> str | None:
    """A TLS handshake in memory, as strict as Python 3.13's default; the version that was agreed on."""
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_side.cert, server_side.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not ends:
            return end.version()
    raise AssertionError("the handshake does not end")


@pytest.mark.parametrize("host", ["fl.example.org", "10.1.2.3", "2001:db8::7", "localhost", "127.0.0.1"])
def test_a_strict_handshake_passes_for_every_host(keys: ServerKeys, host: str) -> None:
    assert handshake(keys, keys.ca_cert, host) == "TLSv1.3"


@pytest.mark.parametrize("host", ["example.org", "fl.example.com", "10.1.2.4", "::1"])
def test_another_host_fails(keys: ServerKeys, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(keys, keys.ca_cert, host)


def test_another_federations_authority_fails(keys: ServerKeys, tmp_path: Path) -> None:
    other = make_server_keys(tmp_path / "other", ["fl.example.org"]).keys
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, other.ca_cert, "fl.example.org")


@needs_openssl
def test_openssl_verifies_strictly_for_servers_and_not_for_clients(keys: ServerKeys) -> None:
    def verify(purpose: str) -> int:
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", keys.ca_cert, keys.cert]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert verify("sslserver") == 0
    assert verify("sslclient") != 0


def test_the_authority_signs_certificates_and_nothing_else(keys: ServerKeys) -> None:
    ca = certificates.read_certificate(keys.ca_cert)
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert basic.critical
    assert basic.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    key = ca.public_key()
    assert isinstance(key, certificates.ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp384r1"
    assert ca.not_valid_after_utc > datetime.now(UTC) + timedelta(days=3649)


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


def test_no_certificate_outlives_the_authority(keys: ServerKeys) -> None:
    made = make_server_keys(keys.folder, ["fl.example.org"], days=10**9)
    assert made.expires <= certificates.read_certificate(keys.ca_cert).not_valid_after_utc
    assert handshake(keys, keys.ca_cert, "fl.example.org")


def test_an_expired_authority_signs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CA_DAYS", 0)
    make_server_keys(tmp_path, ["fl.example.org"])
    with pytest.raises(PolyclinicError, match=r"ca.crt: expired on .* send its ca.crt to every hospital"):
        make_server_keys(tmp_path, ["fl.example.org"])


@pytest.mark.parametrize("gone", ["ca_key", "ca_cert"])
def test_half_an_authority_is_not_replaced(keys: ServerKeys, gone: str) -> None:
    path: Path = getattr(keys, gone)
    path.unlink()
    with pytest.raises(PolyclinicError, match=rf"{path.name}: is missing beside ca\.\w+; put it back"):
        make_server_keys(keys.folder, ["fl.example.org"])
    assert not path.exists()


def test_a_damaged_or_foreign_authority_gets_a_sentence(keys: ServerKeys) -> None:
    shutil.copy(keys.key, keys.ca_key)
    with pytest.raises(PolyclinicError, match=r"ca.key: is not the key of .*ca.crt"):
        make_server_keys(keys.folder, ["fl.example.org"])
    keys.ca_key.write_text("nothing")
    with pytest.raises(PolyclinicError, match=r"ca.key: not a PEM private key"):
        make_server_keys(keys.folder, ["fl.example.org"])
    keys.ca_cert.write_text("nothing")
    with pytest.raises(PolyclinicError, match=r"ca.crt: not a PEM certificate"):
        make_server_keys(keys.folder, ["fl.example.org"])


@pytest.mark.parametrize(
    "host", ["", "https://fl.example.org", "fl.example.org:9092", "10.0.0.300", "a_b", "-a", "münchen.de", "0.0.0.0"]
)
def test_a_host_that_is_none_leaves_nothing_behind(tmp_path: Path, host: str) -> None:
    with pytest.raises(PolyclinicError, match="--host"):
        make_server_keys(tmp_path / "server", ["fl.example.org", host])
    assert not (tmp_path / "server").exists()


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


@needs_ssh_keygen
def test_openssh_reads_the_pair_and_gives_the_same_fingerprint(tmp_path: Path) -> None:
    def ssh_keygen(*arguments: object) -> str:
        return subprocess.run(["ssh-keygen", *map(str, arguments)], capture_output=True, text=True, check=True).stdout

    secret, public = make_site_key(tmp_path, "north")
    assert ssh_keygen("-lf", public).split() == ["384", read_public_key(public).fingerprint, "north", "(ECDSA)"]
    assert ssh_keygen("-y", "-f", secret).split()[:2] == public.read_text().split()[:2]
    for bits in (256, 384, 521):
        ssh_keygen("-q", "-t", "ecdsa", "-b", bits, "-N", "", "-f", tmp_path / f"p{bits}", "-C", "dr.who@example.org")
        assert accept(tmp_path, tmp_path / f"p{bits}.pub") == f"p{bits}"
        listed = accepted(tmp_path)[f"p{bits}"]
        assert read_public_key(listed).curve == f"P-{bits}"
        assert listed.read_text().split()[2] == f"p{bits}", "the comment, which may name a person, stays behind"


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


def test_what_is_no_sites_public_key_is_not_accepted(tmp_path: Path, keys: ServerKeys) -> None:
    secret, public = make_site_key(tmp_path, "north")
    ed25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl someone\n"
    for name, data, sentence in (
        ("secret.pub", secret.read_bytes(), "is a private key, which never leaves its hospital"),
        ("tls.pub", keys.key.read_bytes(), "is a private key"),
        ("cert.pub", keys.cert.read_bytes(), "not an OpenSSH public key"),
        ("empty.pub", b"", "not an OpenSSH public key"),
        ("binary.pub", bytes(range(256)), "not an OpenSSH public key"),
        ("cut.pub", public.read_bytes()[:90], "not an OpenSSH public key"),
        ("ed.pub", ed25519.encode(), "is a key of kind ssh-ed25519"),
        ("north.txt", public.read_bytes(), "rename it to NAME.pub"),
        ("no site.pub", public.read_bytes(), "is no name of a site"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PolyclinicError, match=sentence):
            accept(keys.folder, tmp_path / name)
    with pytest.raises(PolyclinicError, match=r"absent.pub: cannot be read"):
        accept(keys.folder, tmp_path / "absent.pub")
    assert accepted(keys.folder) == {}


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


def test_the_python_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "keys.md"
    monkeypatch.chdir(tmp_path)
    exec(page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0], {})
    assert "server-keys/sites/north.pub" in capsys.readouterr().out


def test_list_warns_of_what_ends_soon_and_of_keys_that_others_can_read(keys: ServerKeys) -> None:
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
