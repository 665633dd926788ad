"""Signatures with a site's key, the one that ``polyclinic keys site`` makes.

Imports ``cryptography`` only where it is used.
"""

from __future__ import annotations

import base64
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec


class KeyFile:
    """A site's private key; the file is read when something is signed for the first time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sign(self, data: bytes) -> tuple[str, str]:
        """The line of the public key, and the signature in base64: ECDSA with SHA-384."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.hashes import SHA384
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        return public, base64.b64encode(self._key.sign(data, ec.ECDSA(SHA384()))).decode()

    @cached_property
    def _key(self) -> ec.EllipticCurvePrivateKey:
        # Gives the sentence where cryptography is not installed.
        from polyclinic.deploy.keys import public_keys  # noqa: F401, I001
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

        data = read_bytes(self.path)
        load = load_ssh_private_key if b"BEGIN OPENSSH" in data else load_pem_private_key
        try:
            key = load(data, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise PolyclinicError(
                f"{self.path}: not a private key without a password; give NAME.key, which polyclinic keys site made."
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise PolyclinicError(f"{self.path}: not a key of the kind that polyclinic keys site makes (ECDSA).")
        return key


def is_signature(public_line: str, data: bytes, signature: str) -> bool:
    """Whether ``signature`` (base64) is one of ``data`` by the key of this line; ``False`` for what is none at all."""
    from polyclinic.deploy.keys import public_keys  # noqa: F401, I001
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(public_line.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(base64.b64decode(signature, validate=True), data, ec.ECDSA(SHA384()))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True
