"""The supervisor of a site: restarts its worker when it ends, and runs the thread that speaks to the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.core.wording import MB, printable_line
from polyclinic.deploy.keys.signatures import KeyFile
from polyclinic.deploy.site.message_loop import Answer, MessageLoop
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.worker_process import SETTINGS_FILE, WorkerProcess, WorkLimits
from polyclinic.federation.site_policy import Policy, load_policy

if TYPE_CHECKING:
    from polyclinic.exchange.tensor_names import Blobs


class SiteSupervisor:
    """Context manager: worker and connection start with it and end with it; :meth:`poll` must be called regularly.

    ``log`` takes each line for the site's log. After ``give_up`` seconds of being rejected :meth:`poll` raises.
    """

    worker_type = WorkerProcess

    def __init__(
        self,
        settings: SiteSettings,
        connection: ServerConnection,
        log: Callable[[str], object],
        give_up: float | None = None,
    ) -> None:
        self.settings, self.connection, self.give_up = settings, connection, give_up
        self.home = Path(settings.home)
        self._log, self._log_lock = log, Lock()
        self.messages = MessageLoop(
            settings.name, connection, self.home / "node.txt", self._ask, self._fail, self._limit, self.log
        )

    def log(self, text: str) -> None:
        """Write a line to the site's log; two threads do."""
        with self._log_lock:
            self._log(text)

    def __enter__(self) -> SiteSupervisor:
        with ExitStack() as stack:
            write_json(self.home / SETTINGS_FILE, asdict(self.settings))
            worker_log = stack.enter_context((self.home / "worker.log").open("wb"))
            self.worker = self.worker_type(self.home, {**os.environ, "PYTHONUNBUFFERED": "1"}, worker_log)
            stack.callback(self.worker.stop)
            self.worker.start()
            stack.callback(self.messages.stop)
            self.messages.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def poll(self) -> None:
        """Log what the worker wrote, restart it if it ended, and raise if the server has rejected the site too long."""
        for line in self.worker.new_lines():
            self.log(line)
        pause = self.worker.restart_if_ended()
        if pause is not None:
            self.log(f"the worker has ended; it starts again in {pause:g} s")
        if not self.messages.is_alive():
            raise PolyclinicError("The thread that speaks to the server has ended; start the site again.")
        since = self.messages.rejected_since
        if self.give_up is not None and since is not None and time.monotonic() - since >= self.give_up:
            raise PolyclinicError(f"{self.messages.problem}.")

    def _policy(self) -> Policy:
        try:
            return load_policy(Path(self.settings.policy) if self.settings.policy else None)
        except PolyclinicError as error:
            self.log(str(error))  # it names a file of the site, and stays there
            raise PolyclinicError(
                "something is wrong with the site's policy, so nothing leaves; its log says what"
            ) from error

    def _ask(self, blobs: Blobs, about: dict[str, Any], stop: Event) -> Answer:
        policy = self._policy()
        return self.worker.ask(blobs, about, WorkLimits(policy.max_seconds_per_round, policy.memory_bytes), stop)

    def _limit(self) -> int:
        return int(self._policy().max_mb_received * MB)

    def _fail(self, reason: str, request: Mapping[str, Any]) -> Answer:
        """The answer to a request that the worker did not answer; it leaves the site, so the audit log lists it."""
        from polyclinic.exchange.audit import AuditLog
        from polyclinic.exchange.receipts import with_receipt
        from polyclinic.recipe.fingerprint import hashed

        broadcast = request.get("broadcast")
        number = broadcast.get("round") if isinstance(broadcast, dict) else None
        about: dict[str, Any] = {
            "kind": "Failure", "site": self.settings.name, "round": number if isinstance(number, int) else -1,
            "reason": printable_line(reason),
        }  # fmt: skip
        run, part, act = (str(request.get(key, ""))[:100] for key in ("run", "part", "act"))
        log = AuditLog(self.home / "audit.jsonl", KeyFile(Path(self.settings.key)) if self.settings.key else None)
        try:
            log.add(run, part, {}, about, {"act": act, **hashed(request.get("recipe")).audit_fields()})
        except PolyclinicError as error:
            self.log(str(error))
            return {}, {**about, "reason": "the site's audit log cannot be written"}
        return {}, with_receipt(about, log.receipt)
