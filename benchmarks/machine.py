"""The machine and the versions that a table was made with, in a sentence."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from polyclinic.core.machine import available_cores


def described(*packages: str) -> str:
    """Such as ``2 cores of an Intel ..., Python 3.11.7, torch 2.13.0.``"""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.machine()
    parts = [f"{available_cores()} cores ({model}, a shared virtual machine)", f"Python {platform.python_version()}"]
    for package in ("torch", *packages):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts) + "."
