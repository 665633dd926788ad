"""The secret of a site: random bytes that never leave it, by which it can name what it must not show."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from polyclinic.core.files import write_private


@dataclass(frozen=True)
class SiteSecret:
    """The secret in a site's home, made when it is first needed."""

    home: Path

    def fingerprint(self, text: str) -> str:
        """HMAC-SHA-256 that tells the server whether a split is still the same; the secret prevents guessing names."""
        return hmac.new(self.key(), text.encode(), "sha256").hexdigest()

    def key(self) -> bytes:
        """The secret itself."""
        file = self.home / "mark.secret"
        if not file.exists():
            write_private(file, secrets.token_bytes(32))
        return file.read_bytes()
