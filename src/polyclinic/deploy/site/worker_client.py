"""The client of a site's worker: finds it by the site's home folder, starts it if needed, and forwards requests to it.

In Flower's simulation there is no worker, and the request is handled in this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.deploy.site.worker_socket import WorkerAddress, receive, send

if TYPE_CHECKING:
    from flwr.app import Context

    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.exchange.tensor_names import Blobs

HOME = "POLYCLINIC_SITE_HOME"
SETTINGS_FILE = "site.json"
_CONNECT_TIMEOUT = 120.0
_ATTEMPTS = 2


def forward_request(blobs: Blobs, about: dict[str, Any], context: Context) -> tuple[Blobs, dict[str, Any]]:
    """Forward a request to the worker of the site that this process belongs to, and wait for the answer."""
    if "partition-id" in context.node_config and "site" not in context.node_config:
        return _in_this_process(blobs, about, context)
    home = _home(context)
    for _ in range(_ATTEMPTS):
        with _connect(home) as connection, suppress(EOFError, ConnectionError):
            send(connection, blobs, about)
            return receive(connection)
        time.sleep(1)  # the worker has just ended; its supervisor restarts it
    raise PolyclinicError(f"the site's worker ended {_ATTEMPTS} times while it was at work; see the site's log")


def _home(context: Context) -> Path:
    """The home folder of the site: from ``polyclinic site``, or as the --node-config of a SuperNode says."""
    if HOME in os.environ:
        return Path(os.environ[HOME])
    config = context.node_config
    for key in ("site", "data"):
        if not isinstance(config.get(key), str):
            raise PolyclinicError(
                f"--node-config has no {key}; start the SuperNode with "
                '--node-config \'site="NAME" data="FOLDER"\', or use polyclinic site.'
            )
    home = Path(str(config.get("home") or default_home(str(config["site"])))).expanduser().resolve()
    settings = {"name": config["site"], "data": config["data"], "home": str(home)}
    optional = {key: config[key] for key in ("policy", "device", "encoder") if key in config}
    home.mkdir(parents=True, exist_ok=True)
    write_json(home / SETTINGS_FILE, settings | optional)
    return home


def site_name() -> str:
    """The name of the site that this process belongs to, from the settings of ``polyclinic site``; else ""."""
    try:
        return str(json.loads((Path(os.environ[HOME]) / SETTINGS_FILE).read_text(encoding="utf-8"))["name"])
    except (KeyError, OSError, ValueError):
        return ""


def default_home(site: str) -> Path:
    """The default folder of a site's state, audit log and worker: ``$XDG_STATE_HOME/polyclinic/NAME``."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "polyclinic" / site


def worker_command(home: Path, owner: int) -> list[str]:
    """The command line of a site's worker, which ends with the process ``owner``."""
    settings = str(home / SETTINGS_FILE)
    return [sys.executable, "-m", "polyclinic.deploy.site.worker", settings, "--owner", str(owner)]


def _connect(home: Path) -> Connection:
    """Connect to the worker, which ``polyclinic site`` supervises; without it the worker is started here."""
    address, deadline, started = WorkerAddress(home), time.monotonic() + _CONNECT_TIMEOUT, HOME in os.environ
    while True:
        try:
            return address.connect()
        except (OSError, AuthenticationError) as error:
            if time.monotonic() > deadline:
                # This goes to the server, so it does not say where the site's folder is.
                raise PolyclinicError(
                    f"the site's worker does not answer ({type(error).__name__}); see the site's log"
                ) from error
        if not started:
            with (home / "worker.log").open("ab") as log:
                command = worker_command(home, os.getppid())
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            started = True
        time.sleep(0.2)


def _in_this_process(blobs: Blobs, about: dict[str, Any], context: Context) -> tuple[Blobs, dict[str, Any]]:
    """Flower's simulation: its actors stay alive between messages, so that a request handler can stay in one."""
    config = {key: str(value) for key, value in context.run_config.items()}
    sites, number = site_names(config.get("sites")), int(context.node_config["partition-id"])
    if not config.get("data") or number >= len(sites):
        raise PolyclinicError(
            f"a simulation needs the federation's folder (data) and a name for each of its nodes (sites); got "
            f"{len(sites)} names for node {number + 1}"
        )
    homes = Path(config.get("homes") or Path(config.get("out", "")) / "sites").resolve()
    home, device, encoder = str(homes / sites[number]), config.get("device"), config.get("encoder")
    return _simulated_handler(sites[number], config["data"], home, device, encoder).serve(blobs, about)


def site_names(setting: Any) -> list[str]:
    """Sorted names of sites from a run's configuration: ``north,south``, or a JSON list."""
    text = str(setting or "")
    try:
        names = json.loads(text) if text.startswith("[") else text.split(",")
    except ValueError:
        raise PolyclinicError(f"sites = '{text}': expected names such as 'north,south'.") from None
    return sorted(name.strip() for name in names if str(name).strip())


@cache
def _simulated_handler(name: str, data: str, home: str, device: str | None, encoder: str | None) -> RequestHandler:
    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.deploy.site.settings import SiteSettings

    policy = Path(home).parent / "policy.toml"
    return RequestHandler(SiteSettings(name, data, home, str(policy) if policy.exists() else None, device, encoder))
