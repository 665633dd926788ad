"""Where the server listens, and the TLS it listens with: options for Flower's SuperLink and for those who call it."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.keys.key_folders import ServerKeys


@dataclass(frozen=True)
class ListenAddress:
    """Where the server listens, and its folder of keys; without keys there is neither encryption nor authentication."""

    host: str
    port: int
    keys: Path | None

    @property
    def local(self) -> str:
        """The address for programs on this machine."""
        return f"127.0.0.1:{self.port}" if self.host in ("0.0.0.0", "::", "") else f"{self.host}:{self.port}"

    def superlink_options(self) -> list[str]:
        """Options of ``flower-superlink``: address, certificate, private key, and that sites must have a known key."""
        listen = ["--host", self.host, "--port", str(self.port)]
        if self.keys is None:
            return [*listen, "--insecure"]
        keys = ServerKeys(self.keys)
        for file in (keys.ca_cert, keys.cert, keys.key):
            if not file.is_file():
                raise PolyclinicError(
                    f"{file}: not found; make it with: polyclinic keys server {keys.folder} --host NAME."
                )
        tls = ["--ssl-ca-certfile", keys.ca_cert, "--ssl-certfile", keys.cert, "--ssl-keyfile", keys.key]
        return [*listen, *map(str, tls), "--enable-supernode-auth"]

    def connection_table(self) -> dict[str, Any]:
        """How Flower's command line on this machine reaches the SuperLink, as an entry of its ``config.toml``."""
        if self.keys is None:
            return {"address": self.local, "insecure": True}
        return {"address": self.local, "root-certificates": str(ServerKeys(self.keys).ca_cert.resolve())}

    def require_free(self, timeout: float) -> None:
        """Raise if the port stays taken; a server that is stopping gets ``timeout`` seconds to free it.

        Another program that listens there would be taken for the SuperLink.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        deadline = time.monotonic() + timeout
        while True:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((self.host, self.port))
                    return
                except OSError as error:
                    if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                        raise PolyclinicError(
                            f"{self.host}:{self.port}: cannot listen there ({error.strerror or error}); "
                            "choose another --port or --host, or end that program."
                        ) from error
            time.sleep(0.2)
