"""Where ``polyclinic watch`` reads the live view of a run: from a run folder, or from a server over TLS."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from socket import gaierror
from types import NoneType
from typing import Any, NamedTuple, Protocol

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes, read_json
from polyclinic.core.tls import certificate_problem, client_context
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.live_view import LIVE_PATH, recorded

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/@]+):(\d{1,5})")
_TOKEN_CHARACTERS = re.compile(r"[!-~]+")
_NUMBERS = frozenset({
    "round", "rounds", "started", "updated", "dice", "best_round", "best_dice", "seconds", "said", "since", "loss",
    "bytes_up", "bytes_down", "stuck",
})  # fmt: skip
_TIMEOUT = 10.0  # seconds for a connection, and for each piece of an answer
_MOST_BYTES = 2**24
_SERVER_TIMEOUT = 300.0  # seconds without an answer after which watching ends
_RETRIES_AFTER_LAST_ROUND = 3  # a server that is gone after the last round has most likely finished


class LostError(PolyclinicError):
    """The server does not answer now; a retry may succeed."""


class LiveSnapshot(NamedTuple):
    """The view, the clock of the machine that wrote it, and a note for the user, such as a lost connection."""

    view: dict[str, Any]
    now: float
    note: str = ""

    @property
    def over(self) -> bool:
        """Whether the run has finished or stopped."""
        return bool(self.view.get("finished") or self.view.get("stopped"))


class Source(Protocol):
    """Where a live view can be read again and again."""

    def read(self) -> LiveSnapshot:
        """The view at this moment."""
        ...


@dataclass(frozen=True)
class FolderSource:
    """A run folder on this machine."""

    folder: RunFolder

    def read(self) -> LiveSnapshot:
        """``live.json``, or the record of a run without one; a summary shows that the run is finished."""
        file, now = self.folder.path / "live.json", time.time()
        if not file.exists():
            return LiveSnapshot(recorded(self.folder), now)
        view = read_json(file)
        if not _is_view(view):
            raise PolyclinicError(f"{file}: not a live view of a run; was it written by another version?")
        summary = None if view.get("finished") else self.folder.summary()
        if summary is not None:
            view |= {"finished": True, "average": summary["average"]}
        elif not view.get("finished"):
            view |= self._outcome()
        return LiveSnapshot(view, now)

    def _outcome(self) -> dict[str, Any]:
        """How the server's process of the Flower engine ended, if it did."""
        file = self.folder.outcome_file
        outcome = read_json(file) if file.exists() else {"finished": True}
        return {} if outcome["finished"] else {"stopped": str(outcome["error"]), "updated": file.stat().st_mtime}


@dataclass(frozen=True)
class ServerSource:
    """The live view that a coordinator's server gives to those who have its token."""

    host: str
    port: int
    token: str = field(repr=False)
    context: ssl.SSLContext | None
    """Trusts the federation's authority alone; without one the connection is plain HTTP."""

    def read(self) -> LiveSnapshot:
        """Request the view once."""
        connection = (
            HTTPConnection(self.host, self.port, timeout=_TIMEOUT)
            if self.context is None
            else HTTPSConnection(self.host, self.port, timeout=_TIMEOUT, context=self.context)
        )
        try:
            connection.request("GET", LIVE_PATH, headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return self._snapshot(answer, answer.read(_MOST_BYTES))
        except (OSError, HTTPException) as error:
            raise self._problem(error) from error
        finally:
            connection.close()

    @property
    def name(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _snapshot(self, answer: HTTPResponse, body: bytes) -> LiveSnapshot:
        if answer.status in (401, 403):
            raise PolyclinicError(
                f"{self.name}: the token is not accepted; the coordinator has the right one in RUN/watch.token."
            )
        if answer.status == 404 and body == b"No run is live.":
            raise LostError(f"{self.name}: the server is there, but no run has started yet; try again in a moment.")
        if answer.status >= 500:
            raise LostError(f"{self.name}: the server answers with an error ({answer.status} {answer.reason}).")
        try:
            view: Any = json.loads(body) if answer.status == 200 else None
        except ValueError:
            view = None
        if not _is_view(view):
            raise PolyclinicError(f"{self.name}: answers, but not as a server of polyclinic; check host and port.")
        return LiveSnapshot(view, _date(answer.headers.get("Date")))

    def _problem(self, error: OSError | HTTPException) -> PolyclinicError:
        """The error to raise for a failed connection."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return PolyclinicError(f"{self.name}: {certificate_problem(error)}.")
        if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            return PolyclinicError(f"{self.name}: does not speak TLS; check the port (or is the server --insecure?).")
        if isinstance(error, gaierror):
            return LostError(f"{self.name}: no machine of this name is known; check the name and the network.")
        if isinstance(error, ConnectionRefusedError):
            return LostError(f"{self.name}: connection refused; check host and port, and whether the server runs.")
        if isinstance(error, TimeoutError):
            return LostError(f"{self.name}: no answer within {_TIMEOUT:g} s; check the network and the firewall.")
        hint = "; a server with keys is watched with --ca, not with --insecure" if self.context is None else ""
        words = str(error) or type(error).__name__
        return LostError(f"{self.name}: the connection broke ({words}){hint}.")


def open_source(
    target: str, ca: Path | None = None, token_file: Path | None = None, insecure: bool = False
) -> FolderSource | ServerSource:
    """The source for what the user named: a folder if there is one, else HOST:PORT."""
    server = _SERVER.fullmatch(target)
    path = Path(target)
    if path.exists() or server is None:
        _require_folder(path, target)
        if ca or token_file or insecure:
            raise PolyclinicError(
                "--ca, --token-file and --insecure are for HOST:PORT; a run folder needs none of them."
            )
        return FolderSource(RunFolder(path))
    host, port = server[1].strip("[]"), int(server[2])
    if not 0 < port < 65536:
        raise PolyclinicError(f"{target}: {port} is not a port; expected HOST:PORT with a port from 1 to 65535.")
    if insecure == (ca is not None):
        raise PolyclinicError(
            "--ca and --insecure exclude each other; leave --insecure out."
            if insecure
            else f"{target}: give --ca ca.crt, the coordinator's certificate, or --insecure for a server without keys."
        )
    if token_file is None:
        raise PolyclinicError(f"{target}: give --token-file FILE; the coordinator has it as RUN/watch.token.")
    return ServerSource(host, port, _token(token_file), None if ca is None else client_context(ca))


def follow(source: Source, first: LiveSnapshot, every: float) -> Iterator[LiveSnapshot]:
    """Yield a view every few seconds until the run is over; while a server is silent, the last one with a note."""
    snapshot, lost_at, tries = first, 0.0, 0
    while True:
        yield snapshot
        if snapshot.over:
            return
        time.sleep(every)
        try:
            snapshot, tries = source.read(), 0
        except LostError as error:
            lost_at, tries = (time.monotonic() if tries == 0 else lost_at), tries + 1
            snapshot = snapshot._replace(now=snapshot.now + every, note=str(error))
            all_rounds_done = 0 < snapshot.view.get("rounds", 0) <= snapshot.view.get("round", 0)
            if tries >= _RETRIES_AFTER_LAST_ROUND and all_rounds_done:
                yield snapshot._replace(note="The server has gone after the last round; its run folder has the result.")
                return
            if time.monotonic() - lost_at > _SERVER_TIMEOUT:
                raise


def _require_folder(path: Path, target: str) -> None:
    if path.is_dir():
        if any((path / name).is_file() for name in ("grid.json", "study.json")):
            raise PolyclinicError(
                f"{path}: holds several runs; give one of their folders, or --web to watch all of them in the browser."
            )
        if not RunFolder(path).begun():
            recipe = "a recipe.toml, but no run of it" if (path / "recipe.toml").exists() else "no recipe.toml"
            raise PolyclinicError(
                f"{path}: not a run folder (it has no live.json and {recipe}); a run that has just been started "
                "needs a moment."
            )
    elif path.exists():
        raise PolyclinicError(f"{path}: a file; give the run folder, or HOST:PORT of a server.")
    elif ":" in target:
        raise PolyclinicError(
            f"{target}: neither a folder nor HOST:PORT; expected such as fl.example.org:8443, without https://."
        )
    else:
        raise PolyclinicError(f"{target}: no such folder; give a run folder, or HOST:PORT of a server.")


def _token(file: Path) -> str:
    token = read_bytes(file).decode("latin-1").strip()
    if not _TOKEN_CHARACTERS.fullmatch(token):
        raise PolyclinicError(f"{file}: not a token; copy the coordinator's file RUN/watch.token.")
    return token


def _is_view(view: Any) -> bool:
    """Whether plain data can be shown: what is there has the right types, whatever version wrote it."""
    if not isinstance(view, dict) or not isinstance(view.get("sites"), dict):
        return False
    rows = [view, *view["sites"].values()]
    return (
        all(isinstance(row, dict) for row in rows)
        and all(isinstance(row[key], (int, float, NoneType)) for row in rows for key in _NUMBERS & row.keys())
        and isinstance(view.get("lines", []), list)
        and isinstance(view.get("average", {}), dict)
    )


def _date(text: str | None) -> float:
    """The server's clock: ages of what it wrote are right though the clock here may be wrong."""
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except ValueError:
        return time.time()
