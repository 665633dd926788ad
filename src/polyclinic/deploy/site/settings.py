"""The settings of a site's worker: plain data, without an import that takes time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteSettings:
    """Name, folders, device and files of a site; ``data`` is a federation folder that holds at least this site."""

    name: str
    data: str
    home: str
    policy: str | None = None
    device: str | None = None
    encoder: str | None = None
    key: str | None = None
    """File of the site's private key, which signs the head of the audit log."""
