"""The Unix socket between a Flower app, which is one process a message, and the site's worker, which stays.

It is in the site's home folder and asks for a secret that only the site's user can read. What passes is JSON and the
bytes of safetensors files, never pickled objects. Nothing here imports torch, so that the app starts fast.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from polyclinic.core.files import write_private

_LONGEST_PATH = 100  # bytes of a socket's path; Linux allows 107, macOS 103


def send(connection: Connection, blobs: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Send a message: a JSON header with plain data and the names of the groups, then the bytes of each group."""
    connection.send_bytes(json.dumps({"about": about, "groups": list(blobs)}).encode())
    for blob in blobs.values():
        connection.send_bytes(blob)


def receive(connection: Connection) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Receive a message that ``send`` sent."""
    header = json.loads(connection.recv_bytes())
    return {group: connection.recv_bytes() for group in header["groups"]}, header["about"]


class WorkerAddress:
    """Where a site's worker listens, and its secret: two files in the site's home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.secret_file = home / "worker.secret"
        self.path_file = home / "worker.path"

    def listen(self) -> Listener:
        """Open the socket with a new secret; an old secret is no longer accepted."""
        self.home.mkdir(parents=True, exist_ok=True)
        socket = self.home.resolve() / f"worker-{os.getpid()}.sock"
        if len(str(socket).encode()) > _LONGEST_PATH:
            folder = Path(gettempdir()) / f"polyclinic-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
                raise PermissionError(f"{folder}: must belong to this user alone")
            socket = folder / f"{secrets.token_hex(8)}.sock"
        socket.unlink(missing_ok=True)  # of a killed worker that had this process id
        secret = secrets.token_hex(32)
        write_private(self.secret_file, secret.encode())
        listener = Listener(str(socket), family="AF_UNIX", authkey=secret.encode())
        socket.chmod(0o600)
        write_private(self.path_file, str(socket).encode())
        return listener

    def connect(self) -> Connection:
        """Connect to the worker; raises ``OSError`` or ``AuthenticationError`` when there is none."""
        path = self.path_file.read_text(encoding="utf-8")
        return Client(path, family="AF_UNIX", authkey=self.secret_file.read_text(encoding="utf-8").encode())
