"""Who a site is, told from a request's headers alone, before its body is read.

A site signs the time of each request with its private key, and nothing else of it; TLS protects the rest. Flower checks
the same once more, and that the node belongs to the key, but only when it has the whole body in memory.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from polyclinic.core.files import read_bytes, write_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
REASON_HEADER, SERVER_TIME_HEADER = b"polyclinic-reason", b"polyclinic-time"
AHEAD, BEHIND = 5.0, 305.0
"""Seconds by which a site's clock may be ahead or a request late: Flower's own tolerance."""
_LONGEST_HEADER = 2048

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Accepted:
    """A request of a site that is known."""

    site: str


@dataclass(frozen=True)
class Rejected:
    """A request that is turned away: HTTP status, ``reason`` for the header, and what the coordinator is told.

    ``guilty`` is false where the caller has shown that it holds the key of a known site, or cannot know better.
    """

    status: int
    reason: str
    notice: str = ""
    site: str = ""
    guilty: bool = False

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """The headers by which a site knows why."""
        reason = (REASON_HEADER, self.reason.encode())
        if self.reason != "clock":
            return (reason,)
        return reason, (SERVER_TIME_HEADER, datetime.now(UTC).isoformat().encode())


def write_sites(path: Path, public_keys: Mapping[str, Path]) -> None:
    """Tell the gate that these sites, name and ``NAME.pub``, are registered and may call."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    def pem(file: Path) -> str:
        return (
            load_ssh_public_key(read_bytes(file)).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        )

    write_json(path, {name: pem(file) for name, file in public_keys.items()})


class SiteAuthentication:
    """Checks requests against the file of :func:`write_sites`; until the file is there, the server is starting."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._version: tuple[int, int] | None = None
        self._sites: dict[bytes, tuple[str, EllipticCurvePublicKey]] | None = None

    def check(self, headers: Headers, address: str) -> Accepted | Rejected:
        """Whose request this is, or why it is turned away."""
        sites = self._read()
        if sites is None:
            return Rejected(503, "starting")
        key = _decoded(_only(headers, KEY_HEADER))
        if key not in sites:
            which = "with a key that no site here has" if key else "without a site's key"
            return Rejected(401, "unknown-key", f"a machine at {address} {which} was turned away", guilty=True)
        name, public = sites[key]
        timestamp = _only(headers, TIME_HEADER)
        if not _is_signed(public, timestamp, _decoded(_only(headers, SIGNATURE_HEADER))):
            notice = f"a machine at {address} that shows the key of {name} but cannot sign with it was turned away"
            return Rejected(401, "signature", notice, guilty=True)
        ahead = _seconds_ahead(timestamp)
        if ahead is None:
            return Rejected(401, "signature", f"{name} was turned away: its requests have no readable time", name)
        if not -BEHIND < ahead < AHEAD:
            side = f"{ahead:.1f} s ahead of" if ahead > 0 else f"{-ahead:.1f} s behind"
            notice = f"{name} was turned away: its clock is {side} this machine's; set both by NTP"
            return Rejected(401, "clock", notice, name)
        return Accepted(name)

    def _read(self) -> dict[bytes, tuple[str, EllipticCurvePublicKey]] | None:
        """The keys, read again if the file was replaced; ``None`` if there is none that can be read."""
        try:
            status = self.file.stat()
            version = status.st_mtime_ns, status.st_ino
            if version != self._version:
                self._sites = _load(self.file)
                self._version = version
        except (OSError, ValueError, AttributeError):
            self._version, self._sites = None, None
        return self._sites


def _load(file: Path) -> dict[bytes, tuple[str, EllipticCurvePublicKey]]:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    sites = {}
    for name, pem in json.loads(file.read_text(encoding="utf-8")).items():
        public = load_pem_public_key(pem.encode())
        if not isinstance(public, EllipticCurvePublicKey):
            raise ValueError(name)
        sites[pem.encode()] = str(name), public
    return sites


def _only(headers: Headers, name: bytes) -> bytes:
    """A header's value; empty if it is missing, too long or there twice, of which Flower might read the other."""
    values = [value for key, value in headers if key == name]
    return values[0] if len(values) == 1 and len(values[0]) <= _LONGEST_HEADER else b""


def _decoded(value: bytes) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError:
        return b""


def _is_signed(public: EllipticCurvePublicKey, message: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    try:
        public.verify(signature, message, ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return bool(message)


def _seconds_ahead(timestamp: bytes) -> float | None:
    """How far the clock that gave this time is ahead of this machine's; ``None`` for what is no time with a zone."""
    try:
        return (datetime.fromisoformat(timestamp.decode("ascii")) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
