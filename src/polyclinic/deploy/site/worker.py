"""The resident worker of a site: holds the network and the images while Flower's processes come and go.

Started by ``polyclinic site`` (or by the app itself under a SuperNode that somebody else runs) and watching the process
it belongs to: it ends with it, however that ends.
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

from polyclinic.deploy.processes import birth, lives
from polyclinic.deploy.site.worker_socket import Address, receive, send


def main(arguments: list[str] | None = None) -> None:
    """Serve one connection after another until the owner is gone."""
    parser = argparse.ArgumentParser(prog="polyclinic worker")
    parser.add_argument("settings", type=Path, help="JSON file with the site's settings")
    parser.add_argument("--owner", type=int, required=True, help="process id that this worker belongs to")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the owner decides
    threading.Thread(target=_leave_with, args=(given.owner, birth(given.owner)), daemon=True).start()
    settings = json.loads(given.settings.read_text(encoding="utf-8"))
    listener = Address(Path(settings["home"])).listen()
    desk = _open_desk(settings)
    while True:
        try:
            with listener.accept() as connection:
                _serve(connection, desk)
        except (AuthenticationError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
            _say(f"a caller was turned away or went away ({type(error).__name__})")


def _open_desk(settings: dict[str, str]) -> object:
    # Torch and MONAI take seconds to load: after the socket is open, so that a first caller waits instead of failing.
    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.deploy.site.settings import SiteSettings

    return RequestHandler(SiteSettings(**settings), _say)


def _serve(connection: Connection, desk: object) -> None:
    from polyclinic.deploy.site.request_handler import RequestHandler

    assert isinstance(desk, RequestHandler)
    send(connection, *desk.serve(*receive(connection)))
    if desk.broken:
        sys.exit("the device failed; the worker starts anew")


def _leave_with(pid: int, born: str) -> None:
    while lives(pid, born):
        time.sleep(0.5)
    os._exit(0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
