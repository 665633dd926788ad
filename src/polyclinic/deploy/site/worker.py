"""The resident worker of a site: holds the network and the images while Flower starts a process for each message.

Started by ``polyclinic site``, or by the app itself under a SuperNode that the user runs. It watches the process that
it belongs to, its owner, and ends with it, however that ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from polyclinic.deploy.processes import is_alive, start_time
from polyclinic.deploy.site.worker_socket import WorkerAddress, receive, send

if TYPE_CHECKING:
    from polyclinic.deploy.site.request_handler import RequestHandler

_OWNER_CHECK_INTERVAL = 0.5


def main(arguments: list[str] | None = None) -> None:
    """Serve one connection after another until the owner ends."""
    parser = argparse.ArgumentParser(prog="polyclinic worker")
    parser.add_argument("settings", type=Path, help="JSON file with the site's settings")
    parser.add_argument("--owner", type=int, required=True, help="process id that this worker belongs to")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the owner ends this worker
    threading.Thread(target=_exit_with, args=(options.owner, start_time(options.owner)), daemon=True).start()
    settings = json.loads(options.settings.read_text(encoding="utf-8"))
    listener = WorkerAddress(Path(settings["home"])).listen()
    handler = _make_handler(settings)
    while True:
        try:
            with listener.accept() as connection:
                _serve(connection, handler)
        except (AuthenticationError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
            _log(f"a connection was rejected or broke ({type(error).__name__})")


def _make_handler(settings: dict[str, str]) -> RequestHandler:
    # Torch and MONAI take seconds to load: after the socket is open, so that a first caller waits instead of failing.
    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.deploy.site.settings import SiteSettings

    return RequestHandler(SiteSettings(**settings), _log)


def _serve(connection: Connection, handler: RequestHandler) -> None:
    send(connection, *handler.serve(*receive(connection)))
    if handler.device_failed:
        sys.exit("the device failed; the worker restarts")


def _exit_with(owner: int, started: str) -> None:
    while is_alive(owner, started):
        time.sleep(_OWNER_CHECK_INTERVAL)
    os._exit(0)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
