"""Serves a page that is watched, on this machine alone: read only, and for those who know its address.

Run folders may be confidential and other users may have accounts here, so the path begins with a secret. A request must
name this host, or a page of another origin could read the answers by pointing a name of its own at this address (DNS
rebinding).
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from polyclinic.core.errors import PolyclinicError
from polyclinic.report.page.live_page import WatchedPage

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_LONGEST_WAIT = 60.0  # seconds, after the end of a run, for a browser that has not heard of it


class PageServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1. ``told`` is set when a browser has heard that everything is over."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, page: WatchedPage, port: int = 0) -> None:
        self.watched, self.secret = page, secrets.token_urlsafe(24)
        self.lock, self.told = threading.Lock(), threading.Event()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            words = getattr(error, "strerror", None) or error
            raise PolyclinicError(
                f"--port {port}: cannot be used ({words}); choose another, or leave it out."
            ) from error

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.secret}/"

    def serve_until_over(self, every: float = 1.0) -> None:
        """Serve until the run is over and a browser knows, or none has asked for a while."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            waits_since: float | None = None  # since when there is nothing to do but to wait
            while not self.told.wait(every):
                over, problem = self._look()
                waits_since = (waits_since or time.monotonic()) if over or problem else None
                if waits_since is not None and time.monotonic() - waits_since >= _LONGEST_WAIT:
                    if problem:
                        raise problem
                    return
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    def _look(self) -> tuple[bool, PolyclinicError | None]:
        """Whether all is over, and what is wrong; files of a run may be missing for a moment."""
        try:
            with self.lock:
                return bool(self.watched.news("")["over"]), None
        except PolyclinicError as error:
            return False, error

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, type and body for a path; there are two, and nothing of it is a file's name."""
        parts = urlsplit(path)
        place = parts.path.removeprefix(f"/{self.secret}/")
        known = parts.path.split("/")
        if (
            len(known) != 3
            or not hmac.compare_digest(known[1].encode(), self.secret.encode())
            or place not in ("", "news")
        ):
            return HTTPStatus.NOT_FOUND, "text/plain", b"Not found."
        try:
            with self.lock:
                if place == "":
                    return HTTPStatus.OK, "text/html", self.watched.page().html(live=True).encode()
                (version,) = parse_qs(parts.query).get("version", [""])[:1]
                news = self.watched.news(version)
        except PolyclinicError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error).encode()
        if news["over"]:
            self.told.set()
        return HTTPStatus.OK, "application/json", json.dumps(news).encode()


class _Handler(BaseHTTPRequestHandler):
    """GET and nothing else."""

    server: PageServer
    timeout = 10
    server_version, sys_version = "polyclinic", ""

    def do_GET(self) -> None:
        """One of the two paths."""
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"Not this host.")
        else:
            self._send(*self.server.answer(self.path))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the terminal is the user's, and the address is a secret."""
