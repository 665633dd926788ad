"""Which user of this machine is at the other end of a connection over the loopback interface."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Any

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_LOOKS = 3  # the kernel may leave out a line while connections come and go

Endpoint = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def owners_are_known() -> bool:
    """Whether this system says who owns a connection: Linux does."""
    return any(table.exists() for table in _TABLES)


def connection_owner(client: Any, server: Any) -> int | None:
    """The user id at the client's end of a connection between two ``(address, port)`` of this machine.

    ``None`` where there is no such connection, or its client has closed it: Linux then gives it to user 0.
    """
    if not client or not server:
        return None
    wanted = _endpoint(*client[:2]), _endpoint(*server[:2])
    owners = (_look(table, wanted) for _ in range(_LOOKS) for table in _TABLES)
    return next((owner for owner in owners if owner is not None), None)


def _look(table: Path, wanted: tuple[Endpoint, Endpoint]) -> int | None:
    try:
        lines = table.read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    # The port alone rules out nearly all lines, and costs much less than reading an address.
    mark = f":{wanted[0][1]:04X} "
    for line in lines:
        if mark not in line:
            continue
        _, local, remote, state, _, _, _, uid, _, inode, *_ = line.split()
        if state == _ESTABLISHED and inode != "0" and (_from_hex(local), _from_hex(remote)) == wanted:
            return int(uid)
    return None


def _endpoint(address: str, port: int) -> Endpoint:
    ip = ipaddress.ip_address(address)
    return getattr(ip, "ipv4_mapped", None) or ip, port


def _from_hex(text: str) -> Endpoint:
    """``0100007F:1F90`` as the kernel writes 127.0.0.1:8080: words of four bytes, each in the machine's byte order."""
    address, _, port = text.partition(":")
    data = bytes.fromhex(address)
    words = [data[start : start + 4] for start in range(0, len(data), 4)]
    swapped = b"".join(int.from_bytes(word, "big").to_bytes(4, sys.byteorder) for word in words)
    ip = ipaddress.ip_address(swapped)
    return getattr(ip, "ipv4_mapped", None) or ip, int(port, 16)
