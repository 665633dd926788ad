from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.keys.key_folders import make_site_key
from polyclinic.deploy.keys.signatures import KeyFile, is_signature


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("north", "south"):
        make_site_key(folder, name)
    return folder


def test_a_signature_is_of_these_bytes_and_this_key_alone(keys: Path) -> None:
    public, signature = KeyFile(keys / "north.key").sign(b"ten lines")
    assert (keys / "north.pub").read_text().startswith(public)
    assert is_signature(public, b"ten lines", signature)
    assert not is_signature(public, b"nine lines", signature)
    other, of_other = KeyFile(keys / "south.key").sign(b"ten lines")
    assert not is_signature(other, b"ten lines", signature)
    assert not is_signature(public, b"ten lines", of_other)
    for hostile in ("", "!", "AAAA", signature[:-8]):
        assert not is_signature(public, b"ten lines", hostile)
    assert not is_signature("no key", b"ten lines", signature)


def test_a_pem_key_signs_too_and_others_get_a_sentence(keys: Path, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "a.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert is_signature(*_with(b"x", KeyFile(tmp_path / "a.key")))
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "b.key").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "c.key").write_text("nothing")
    for name, words in (
        ("b.key", "not a key of the kind"),
        ("c.key", "not a private key"),
        ("d.key", "cannot be read"),
    ):
        with pytest.raises(PolyclinicError, match=words):
            KeyFile(tmp_path / name).sign(b"x")


def _with(data: bytes, key: KeyFile) -> tuple[str, bytes, str]:
    public, signature = key.sign(data)
    return public, data, signature
