"""The version of polyclinic, and of everything else that a number may depend on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

VERSION = "0.1.0"
_PACKAGES = ("polyclinic", "torch", "monai", "numpy", "scipy", "safetensors", "pydantic", "timm", "flwr")


def installed_versions() -> dict[str, str]:
    """Versions of everything that a number may depend on."""
    versions = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
