"""The channel between a site's process, which speaks to the server, and its worker, which holds the images.

It is a pair of sockets that the worker inherits: it has no address, so that no other process can reach it. What passes
is JSON and the bytes of safetensors files, never pickled objects. Nothing here imports torch.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any


def channel_pair() -> tuple[Connection, socket.socket]:
    """This process's end, and the end for a worker to inherit."""
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), theirs


def send(connection: Connection, blobs: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Send a message: a JSON header with plain data and the names of the groups, then the bytes of each group."""
    connection.send_bytes(json.dumps({"about": about, "groups": list(blobs)}).encode())
    for blob in blobs.values():
        connection.send_bytes(blob)


def receive(connection: Connection) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Receive a message that ``send`` sent."""
    header = json.loads(connection.recv_bytes())
    return {group: connection.recv_bytes() for group in header["groups"]}, header["about"]
