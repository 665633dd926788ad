"""What a hospital says of itself when its site starts. Nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteSettings:
    """What the hospital says of itself. ``data`` is a federation folder that holds at least this site's folder."""

    name: str
    data: str
    home: str
    policy: str | None = None
    device: str | None = None
    encoder: str | None = None
