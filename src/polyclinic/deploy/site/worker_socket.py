"""The line between a Flower app, which lives for one message, and the site's worker, which stays.

A Unix socket in the site's own folder and a secret that only the site's user can read. What passes is JSON and the
bytes of safetensors files, never pickled objects. Nothing here needs torch, so that the app starts fast.
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

_LONGEST = 100  # of a socket's path; Linux allows 107 bytes, macOS 103


def send(connection: Connection, blobs: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Plain data and the names of what follows, then the bytes."""
    connection.send_bytes(json.dumps({"about": about, "groups": list(blobs)}).encode())
    for blob in blobs.values():
        connection.send_bytes(blob)


def receive(connection: Connection) -> tuple[dict[str, bytes], dict[str, Any]]:
    """What ``send`` sent."""
    head = json.loads(connection.recv_bytes())
    return {group: connection.recv_bytes() for group in head["groups"]}, head["about"]


class Address:
    """Where a site's worker listens, and the secret, both in the site's home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.secret_file = home / "worker.secret"
        self.path_file = home / "worker.path"

    def listen(self) -> Listener:
        """Open the socket with a new secret; whoever knew an old one is shut out."""
        self.home.mkdir(parents=True, exist_ok=True)
        socket = self.home.resolve() / f"worker-{os.getpid()}.sock"
        if len(str(socket).encode()) > _LONGEST:
            folder = Path(gettempdir()) / f"polyclinic-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
                raise PermissionError(f"{folder}: must belong to this user alone")
            socket = folder / f"{secrets.token_hex(8)}.sock"
        socket.unlink(missing_ok=True)  # of a killed worker that had this number
        secret = secrets.token_hex(32)
        _write_private(self.secret_file, secret)
        listener = Listener(str(socket), family="AF_UNIX", authkey=secret.encode())
        socket.chmod(0o600)
        _write_private(self.path_file, str(socket))
        return listener

    def connect(self) -> Connection:
        """Call the worker; raises ``OSError`` or ``AuthenticationError`` when there is none."""
        path = self.path_file.read_text(encoding="utf-8")
        return Client(path, family="AF_UNIX", authkey=self.secret_file.read_text(encoding="utf-8").encode())


def _write_private(path: Path, text: str) -> None:
    """Readable by this user alone from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
