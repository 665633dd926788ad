"""A TLS handshake without a network."""

from __future__ import annotations

import ssl
from pathlib import Path

from polyclinic.deploy.keys.key_folders import ServerKeys


def handshake(server_side: ServerKeys, ca: Path, host: str) -> str | None:
    """A TLS handshake in memory, as strict as Python 3.13's default; the version that was agreed on."""
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_side.cert, server_side.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not ends:
            return end.version()
    raise AssertionError("the handshake does not end")
