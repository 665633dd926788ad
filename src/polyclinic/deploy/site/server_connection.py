"""A site's connection to its server: where TLS is set up at a site, and what is wrong with it, in a sentence."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tls import certificate_problem, client_context

_CONNECT_TIMEOUT = 2.0
_HANDSHAKE_TIMEOUT = 5.0


@dataclass(frozen=True)
class ServerConnection:
    """How to reach the server, ``HOST:PORT``: over TLS with the site's private key and the federation's ca.crt.

    Without both files nothing is encrypted and nobody is authenticated.
    """

    server: str
    key: Path | None = None
    ca: Path | None = None

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The server as :mod:`socket` wants it; an IPv6 address is written in brackets."""
        host, _, port = self.server.rpartition(":")
        return host.strip("[]"), int(port)

    def supernode_options(self) -> list[str]:
        """Options for ``flower-supernode``."""
        if self.key is None or self.ca is None:
            return ["--insecure", "--superlink", self.server]
        return [
            "--root-certificates", str(self.ca), "--auth-supernode-private-key", str(self.key),
            "--superlink", self.server,
        ]  # fmt: skip

    def check_files(self) -> None:
        """Raise where the key or the certificate is missing, is something else, or can be read by others."""
        for file, option in ((self.key, "key"), (self.ca, "ca")):
            if file is not None and not file.is_file():
                raise PolyclinicError(f"{file}: no such file; give the site's --{option}.")
        if self.key is not None and not self.key.read_bytes().startswith(b"-----BEGIN "):
            raise PolyclinicError(f"{self.key}: not a private key; give NAME.key, which polyclinic keys site made.")
        if self.ca is not None:
            client_context(self.ca)
        if self.key is not None and self.key.stat().st_mode & 0o077 and os.name == "posix":
            raise PolyclinicError(f"{self.key}: others can read this private key; run: chmod 600 {self.key}")

    def is_listening(self) -> bool | None:
        """Whether a server listens there; ``None`` if that cannot be told, as when a firewall drops packets."""
        try:
            with socket.create_connection(self.host_and_port, timeout=_CONNECT_TIMEOUT):
                return True
        except ConnectionRefusedError:
            return False
        except OSError:
            return None

    def problem(self) -> str | None:
        """Try a TLS handshake; what prevents it in a sentence without its full stop, or ``None``.

        Flower's log has the same among much else, or not at all.
        """
        host = self.host_and_port[0]
        try:
            with socket.create_connection(self.host_and_port, timeout=_HANDSHAKE_TIMEOUT) as plain:
                if self.ca is not None:
                    client_context(self.ca).wrap_socket(plain, server_hostname=host).close()
        except PolyclinicError as error:  # ca.crt was removed or damaged while the site runs
            return str(error).rstrip(".")
        except ssl.SSLCertVerificationError as error:
            return f"{self.server}: {certificate_problem(error)}"
        except ssl.SSLError as error:
            return f"{self.server} does not speak TLS as expected ({error.reason}); check the port"
        except socket.gaierror:
            return f"no machine of the name {host} is known; check --server and the network"
        except ConnectionError:
            return None  # no server runs there now, which is_listening tells
        except OSError as error:
            return f"{self.server} cannot be reached ({error.strerror or error}); check the network and the firewall"
        return None
