"""Certificates: strict TLS handshakes, OpenSSL's verification, damaged files."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from key_support import handshake
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.keys import certificates
from polyclinic.deploy.keys.key_folders import (
    ServerKeys,
    make_server_keys,
)

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed here")


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


def test_no_certificate_outlives_the_authority(keys: ServerKeys) -> None:
    made = make_server_keys(keys.folder, ["fl.example.org"], days=10**9)
    assert made.expires <= certificates.read_certificate(keys.ca_cert).not_valid_after_utc
    assert handshake(keys, keys.ca_cert, "fl.example.org")


def test_an_expired_authority_signs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "CA_DAYS", 0)
    make_server_keys(tmp_path, ["fl.example.org"])
    with pytest.raises(PolyclinicError, match=r"ca.crt: expired on .* send its ca.crt to every hospital"):
        make_server_keys(tmp_path, ["fl.example.org"])


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
