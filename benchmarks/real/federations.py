"""Where the federations of the pages are: below one folder, or made from one there, volumes to be cut into slices."""

from __future__ import annotations

import re
from pathlib import Path

from polyclinic.core.files import write_text

SLICED = {"prostate_slices": "prostate3d"}
"""Federations of slices, and the volumes that they are cut from."""
MADE = Path(__file__).parents[2] / "runs" / "federations"


def place(name: str, data: Path) -> Path:
    """The folder of a federation; one of slices is there after `make`."""
    return MADE / name if name in SLICED else data / name


def make(name: str, data: Path) -> Path:
    """Like `place`, and links the volumes into a federation whose task is in two dimensions, if it has to be made."""
    folder = place(name, data)
    if name in SLICED:
        volumes = (data / SLICED[name]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for part in volumes.iterdir():
            link = folder / part.name
            if part.name != "federation.toml" and not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(part)
        about = (volumes / "federation.toml").read_text(encoding="utf-8")
        about, changed = re.subn(r"(?m)^spatial_dims = 3$", "spatial_dims = 2", about)
        assert changed == 1, f"{volumes / 'federation.toml'} says no spatial_dims = 3"
        write_text(folder / "federation.toml", about)
    return folder
