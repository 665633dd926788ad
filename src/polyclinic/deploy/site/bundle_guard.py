"""The guard against foreign code: a site runs the polyclinic that is installed there, never code that came with a run.

Flower sends every run as a bundle of files and would import them. Here a bundle may hold one file, ``pyproject.toml``,
that names polyclinic's own app; anything else is refused, and the app is taken from the installed package in any case.
"""

from __future__ import annotations

import importlib
import io
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

CLIENT = "polyclinic.deploy.site.client_app:app"
SERVER = "polyclinic.deploy.coordinator.server_app:app"
_ALLOWED = frozenset({"pyproject.toml", ".info/CONTENT"})


def refusal_of_bundle(bundle: bytes) -> str | None:
    """Why a Flower app bundle may not run here, or ``None``."""
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            extra = sorted(set(archive.namelist()) - _ALLOWED)
            if extra:
                return f"the run brings files of its own ({', '.join(extra[:3])}); this machine runs polyclinic only"
            table = tomllib.loads(archive.read("pyproject.toml").decode())
            components = table["tool"]["flwr"]["app"]["components"]
    except Exception as error:  # zipfile raises many kinds of errors for hostile bytes
        return f"the run's bundle cannot be read ({type(error).__name__})"
    if components != {"serverapp": SERVER, "clientapp": CLIENT}:
        return "the run names another app than polyclinic's; this machine runs polyclinic only"
    return None


def clientapp() -> None:
    """``flwr-clientapp``, patched: bundles are checked and never installed, and the app is always polyclinic's own."""
    _skip_package("flwr.supernode.cli")
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as module

    def check_bundle(bundle: bytes, **_: Any) -> None:
        reason = refusal_of_bundle(bundle)
        if reason is not None:
            raise PermissionError(reason)

    def installed_app(*_: Any, **__: Any) -> Any:
        from polyclinic.deploy.site.client_app import app

        return lambda *_: app

    for name, replacement in (("install_from_fab", check_bundle), ("get_load_client_app_fn", installed_app)):
        if not hasattr(module, name):
            sys.exit("This version of Flower cannot be guarded; install the version that polyclinic pins.")
        setattr(module, name, replacement)
    flwr_clientapp()


def _skip_package(name: str) -> None:
    """Let a package's modules be imported without its ``__init__``.

    That of Flower's commands imports the SuperNode with its web server and database: a second for every message.
    """
    parent, _, folder = name.rpartition(".")
    package = ModuleType(name)
    package.__path__ = [str(Path(path) / folder) for path in importlib.import_module(parent).__path__]
    sys.modules.setdefault(name, package)


def write_guard(folder: Path) -> Path:
    """Write a program ``flwr-clientapp`` that runs :func:`clientapp`; its folder must lead the SuperNode's PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "flwr-clientapp"
    script.write_text(
        f"#!{sys.executable}\nfrom polyclinic.deploy.site.bundle_guard import clientapp\n\nclientapp()\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return folder
