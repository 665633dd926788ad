"""The worker of a site: holds the network and the images, and answers the requests that the site's process passes on.

It has no connection to the network. It watches the process that it belongs to, its owner, and ends with it, however
that ends.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from polyclinic.deploy.processes import end_with
from polyclinic.deploy.site.worker_channel import receive, send

if TYPE_CHECKING:
    from polyclinic.deploy.site.request_handler import RequestHandler


def main(arguments: list[str] | None = None) -> None:
    """Answer one request after another until the owner closes the channel or ends."""
    parser = argparse.ArgumentParser(prog="polyclinic worker")
    parser.add_argument("settings", type=Path, help="JSON file with the site's settings")
    parser.add_argument("--owner", type=int, required=True, help="process id that this worker belongs to")
    parser.add_argument("--channel", type=int, required=True, help="inherited file descriptor of the channel")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the owner ends this worker
    end_with(options.owner)
    os.set_inheritable(options.channel, False)
    handler = _make_handler(json.loads(options.settings.read_text(encoding="utf-8")))
    with Connection(options.channel) as connection:
        while True:
            try:
                request = receive(connection)
            except EOFError:
                return
            send(connection, *handler.serve(*request))
            if handler.device_failed:
                sys.exit("the device failed; the worker restarts")


def _make_handler(settings: dict[str, str]) -> RequestHandler:
    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.deploy.site.settings import SiteSettings

    return RequestHandler(SiteSettings(**settings), _log)


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
