"""Small messages between the engine and a worker, over a pair of sockets: JSON, and descriptors of shared blocks."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_LENGTH = 4  # bytes before each message: its length
_MOST_DESCRIPTORS = 8  # of one message


class Channel:
    """One end. Whatever is large lies in a shared block, so that sending never waits for the other end to read."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def fileno(self) -> int:
        """For ``select``."""
        return self.end.fileno()

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send plain data, and duplicates of file descriptors."""
        text = json.dumps(message).encode()
        socket.send_fds(self.end, [len(text).to_bytes(_LENGTH, "little")], descriptors)
        self.end.sendall(text)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors; ``EOFError`` when the other end is gone."""
        head, descriptors, _, _ = socket.recv_fds(self.end, _LENGTH, _MOST_DESCRIPTORS)
        head += self._exactly(_LENGTH - len(head)) if head else b""
        if not head:
            raise EOFError
        return json.loads(self._exactly(int.from_bytes(head, "little"))), list(descriptors)

    def _exactly(self, count: int) -> bytes:
        pieces = []
        while count:
            piece = self.end.recv(count)
            if not piece:
                raise EOFError
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """The other end will get ``EOFError``."""
        self.end.close()
