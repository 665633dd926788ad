"""The thread of a site that speaks to the server: connects, takes requests, passes them to the worker, sends answers.

Whatever a message holds, nothing is started or imported for it: it is a request for the worker, or it is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.worker_process import StoppedError

if TYPE_CHECKING:
    from polyclinic.engines.flower.fleet_client import FleetClient, Incoming, RejectedError
    from polyclinic.exchange.tensor_names import Blobs

_RETRY_INTERVAL = 1.0  # seconds between two attempts to connect
_FIRST_POLL, _LAST_POLL, _POLL_GROWTH = 0.05, 1.0, 1.15  # seconds between two questions for a message
_LONGEST_PAUSE = 5.0  # seconds after many requests in a row that failed or were refused
_HEARTBEAT_INTERVAL = 15.0
_REMINDER_INTERVAL = 60.0  # seconds between two lines about a problem that lasts
_SEND_PATIENCE = 120.0  # seconds in which an answer is sent again over a connection that breaks

Answer = tuple["Blobs", dict[str, Any]]


class MessageLoop(Thread):
    """Runs until :meth:`stop`. ``ask`` passes a request to the worker, ``fail`` makes the answer that reports an error.

    ``limit`` gives the most bytes of a request.
    """

    def __init__(
        self,
        site: str,
        connection: ServerConnection,
        node_file: Path,
        ask: Callable[[Blobs, dict[str, Any], Event], Answer],
        fail: Callable[[str, Mapping[str, Any]], Answer],
        limit: Callable[[], int],
        log: Callable[[str], object],
    ) -> None:
        super().__init__(name="messages", daemon=True)
        self.site, self.connection, self.node_file, self.log = site, connection, node_file, log
        self._ask, self._fail, self._limit = ask, fail, limit
        self._stopping = Event()
        self.rejected_since: float | None = None
        """Since when the server has refused this site or could not be trusted, in seconds of the monotonic clock."""
        self.problem = ""
        """Why, in a sentence without its full stop."""
        self._logged_at = 0.0
        self._server_down = False
        self._checked_runs: dict[int, str | None] = {}

    def stop(self) -> None:
        """End the thread; the server is told that the site leaves."""
        self._stopping.set()
        if self.is_alive():
            self.join(15)

    def run(self) -> None:
        """Connect, serve, and connect again when the connection ends."""
        while not self._stopping.is_set():
            try:
                if self._can_connect():
                    self._connect_and_serve()
            except StoppedError:
                return
            except Exception as error:  # an exception in a thread is lost, and the site would be silent for ever
                with suppress(Exception):  # the disk of the log may be full, and will not be for ever
                    self.log(f"the connection failed ({type(error).__name__}: {error}); connecting again")
            self._stopping.wait(_RETRY_INTERVAL)

    def _can_connect(self) -> bool:
        """Whether a server listens whose certificate can be trusted; logged at once, and again every minute."""
        if self.connection.is_listening() is False:
            if not self._server_down:
                self.log(f"nobody listens on {self.connection.server}; waiting for the server")
            self._server_down = True
            return False
        self._server_down = False
        problem = self.connection.problem()
        if problem is not None:
            self._report(problem)
        return problem is None

    def _connect_and_serve(self) -> None:
        from polyclinic.engines.flower.fleet_client import ConnectionLostError, FleetClient, RejectedError

        client = FleetClient(self.connection.server, self.connection.key, self.connection.ca)
        connected = False
        try:
            number = client.activate()
            connected = True
            self._accepted(number)
            self._serve(client)
        except ConnectionLostError:
            if connected and not self._stopping.is_set():
                self.log("the connection ended; connecting again")
        except RejectedError as error:
            self._rejected(client, error)
        finally:
            if connected:
                client.deactivate()
            client.close()

    def _accepted(self, number: int) -> None:
        self.rejected_since, self.problem = None, ""
        write_text(self.node_file, f"{self.connection.server} {number}")
        self.log(f"connected to {self.connection.server}")

    def _rejected(self, client: FleetClient, error: RejectedError) -> None:
        if error.reason == "active" and self._deactivate_old_node(client):
            return
        if error.reason == "clock":
            self._report(_clock_sentence(self.connection.server, error.ahead))
        elif error.reason in ("key", "active"):
            self._report(
                f"{self.connection.server} does not accept the key of site '{self.site}'; ask the coordinator to "
                f"accept {self.site}.pub with polyclinic keys accept, and to restart or resume the run"
            )
        else:
            self._report(f"{self.connection.server} rejects this site ({error.reason})")

    def _deactivate_old_node(self, client: FleetClient) -> bool:
        """The server may still count a node of this site as active that was killed without leaving."""
        if not self.node_file.exists():
            return False
        server, _, number = self.node_file.read_text(encoding="utf-8").partition(" ")
        self.node_file.unlink()
        if server != self.connection.server or not number.isdigit():
            return False
        client.deactivate(int(number))
        return True

    def _report(self, problem: str) -> None:
        self.rejected_since = self.rejected_since or time.monotonic()
        if problem != self.problem or time.monotonic() - self._logged_at > _REMINDER_INTERVAL:
            self._logged_at = time.monotonic()
            self.log(problem)
        self.problem = problem

    def _serve(self, client: FleetClient) -> None:
        """Answer messages until the connection ends; heartbeats go on while the worker is at work."""
        ended = Event()
        heartbeats = Thread(target=_send_heartbeats, args=(client, ended), name="heartbeats", daemon=True)
        heartbeats.start()
        pause = _FIRST_POLL
        failures = 0
        try:
            while not self._stopping.is_set() and heartbeats.is_alive():
                incoming = client.next_message()
                if incoming is not None:
                    failures = 0 if self._answer(client, incoming) else failures + 1
                    # Each answer is a line of the log and of the audit: requests without sense must not fill the disk.
                    self._stopping.wait(min(_FIRST_POLL * (2 ** min(failures, 10) - 1), _LONGEST_PAUSE))
                pause = _FIRST_POLL if incoming is not None else min(pause * _POLL_GROWTH, _LAST_POLL)
                self._stopping.wait(pause)
        finally:
            ended.set()

    def _answer(self, client: FleetClient, incoming: Incoming) -> bool:
        """Answer a message; whether it was a request that could be served."""
        from polyclinic.engines.flower.fleet_client import RunEndedError
        from polyclinic.engines.flower.records import to_records

        try:
            answer = self._answer_to(client, incoming)
            self._send(client, incoming, to_records(*answer))
        except RunEndedError:
            self.log("the run of a request has ended; its answer is not sent")
            return False
        return answer[1].get("kind") != "Failure"

    def _answer_to(self, client: FleetClient, incoming: Incoming) -> Answer:
        from polyclinic.engines.flower.fleet_client import ConnectionLostError, RejectedError, RunEndedError
        from polyclinic.engines.flower.records import from_records

        about: dict[str, Any] = {}
        try:
            refusal = self._refusal_of_run(client, incoming.run)
            if refusal is not None:
                raise PolyclinicError(f"refused: {refusal}")
            limit = self._limit()
            blobs, about = from_records(client.fetch(incoming, limit), limit)
            return self._ask(blobs, about, self._stopping)
        except (ConnectionLostError, RejectedError, RunEndedError, StoppedError):
            raise
        except PolyclinicError as error:
            self.log(str(error))
            return self._fail(str(error), about)
        except Exception as error:  # hostile bytes may raise anything; what it says may hold names of the site
            self.log(f"a request could not be handled: {type(error).__name__}: {error}")
            return self._fail(f"the request could not be handled ({type(error).__name__}); the site's log says why", {})

    def _refusal_of_run(self, client: FleetClient, run: int) -> str | None:
        """Why nothing of a run is served, or ``None``; asked once for each run."""
        from polyclinic.deploy.site.run_guard import refusal_of_run

        if run not in self._checked_runs:
            if len(self._checked_runs) > 1000:
                self._checked_runs.clear()
            info = client.run_info(run)
            self._checked_runs[run] = refusal_of_run(info.task_type, info.bundle)
        return self._checked_runs[run]

    def _send(self, client: FleetClient, incoming: Incoming, records: Any) -> None:
        """Send an answer, again for a while if the network fails: it may be the work of hours."""
        from polyclinic.engines.flower.fleet_client import ConnectionLostError

        deadline = time.monotonic() + _SEND_PATIENCE
        while True:
            try:
                client.reply(incoming, records)
                return
            except ConnectionLostError:
                if time.monotonic() > deadline or self.connection.is_listening() is False:
                    raise
                if self._stopping.wait(_RETRY_INTERVAL):
                    raise StoppedError from None


def _send_heartbeats(client: FleetClient, ended: Event) -> None:
    """Tell the server that the site is there, until ``ended`` or until the server no longer knows it."""
    from polyclinic.engines.flower.fleet_client import ConnectionLostError

    failures = 0
    while not ended.wait(_HEARTBEAT_INTERVAL if not failures else _RETRY_INTERVAL):
        try:
            client.heartbeat()
            failures = 0
        except ConnectionLostError:
            failures += 1
            if failures > 30:
                return
        except Exception:  # rejected, or nonsense: the loop sees that this thread has ended, and connects anew
            return


def _clock_sentence(server: str, ahead: float | None) -> str:
    if ahead is None:
        return f"{server} does not accept this machine's clock; set the clocks of both machines by NTP"
    side = "ahead of" if ahead > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead):.0f} s {side} that of {server}, which therefore accepts nothing from "
        "here; set the clocks of both machines by NTP"
    )
