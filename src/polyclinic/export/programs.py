"""Copies of the stand-alone files, which lie beside an exported model and import nothing of polyclinic."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from polyclinic.core.files import write_text

_PACKAGE = "polyclinic.export.standalone"
PROGRAM = ("segment.py", "preparation.py", "resampling.py", "image_files.py", "site_intensity.py")
"""What runs an exported model: the command, and what it imports."""
BUNDLE_SCRIPTS = ("bundle_steps.py", "preparation.py", "resampling.py", "image_files.py", "site_intensity.py")
"""What a MONAI bundle needs beside MONAI's own transforms."""


def copy_programs(names: tuple[str, ...], folder: Path, package: str = "") -> None:
    """Write files of the package ``standalone`` into a folder, which is the package ``package`` there, or none."""
    for name in names:
        text = files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")
        write_text(folder / name, text.replace(f"{_PACKAGE}.", f"{package}." if package else ""))
