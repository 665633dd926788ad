"""The settings of a site's worker: plain data, without an import that takes time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SiteSettings:
    """Name, folders, device and files of a site; ``data`` is a federation folder that holds at least this site.

    ``case_pattern`` is the site's own, in place of that of its federation.toml.
    """

    name: str
    data: str
    home: str
    policy: str | None = None
    device: str | None = None
    encoder: str | None = None
    case_pattern: str | None = None
    key: str | None = None
    """File of the site's private key, which signs the head of the audit log."""
    cache: str | None = None
    """Folder of prepared images, ``home/cache`` by default; ``off``: they are in memory and on no disk."""


def default_home(site: str) -> Path:
    """The default folder of a site's state and audit log: ``$XDG_STATE_HOME/polyclinic/NAME``."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "polyclinic" / site
