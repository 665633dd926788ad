"""OpenSSH for ``polyclinic keys``: the key pair with which a site authenticates at the server.

Imports ``cryptography``, so import this module only inside functions; others call ``key_folders``.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes

try:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_ssh_public_key,
    )
except ImportError as error:
    raise PolyclinicError("keys need the extra: pip install 'polyclinic[flower]'.") from error


@dataclass(frozen=True)
class PublicKey:
    """A site's public key: its curve (P-384), its fingerprint as of ``ssh-keygen -l``, and its line without comment."""

    curve: str
    fingerprint: str
    line: str


def new_pair() -> tuple[bytes, PublicKey]:
    """A new private key as OpenSSH writes it, without a password because sites start unattended; and its public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), _describe(key.public_key())


def read_public_key(path: Path) -> PublicKey:
    """A site's public key; a private key or one of another kind gets a sentence."""
    data = read_bytes(path)
    if b"PRIVATE KEY-----" in data:
        raise PolyclinicError(
            f"{path}: is a private key, which never leaves its hospital; ask for the .pub file, of a new pair if this "
            "one was sent."
        )
    expected = "expected is the .pub file that 'polyclinic keys site NAME' makes"
    try:
        key = load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PolyclinicError(f"{path}: not an OpenSSH public key ({error}); {expected}.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        kind = data.split(maxsplit=1)[0].decode(errors="replace")
        raise PolyclinicError(f"{path}: is a key of kind {kind}, and Flower takes P-256, P-384 or P-521; {expected}.")
    return _describe(key)


def fingerprint_of(line: str) -> str:
    """The fingerprint of a public key's line, as ``ssh-keygen -l`` shows it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _describe(key: ec.EllipticCurvePublicKey) -> PublicKey:
    line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    # OpenSSH's format knows these three curves alone: 256, 384 and 521 bits.
    return PublicKey(f"P-{key.curve.key_size}", fingerprint_of(line), line)
