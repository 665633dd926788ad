"""The receipts of the sites' audit logs in a run folder, ``receipts.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import append_text, read_bytes
from polyclinic.exchange.receipts import Receipt, read_receipts

_LARGEST_FILE = 64 * 2**20  # bytes, some 400 000 answers


class ReceiptBook:
    """Keeps every receipt, and warns once about a site whose log has become shorter or another one."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path, self.warn = path, warn
        self._warned: set[str] = set()
        self._newest = self._read()

    def add(self, site: str, receipt: Receipt) -> None:
        """Write a receipt down."""
        before = self._newest.get(site)
        if before is not None and receipt != before and receipt.lines <= before.lines:
            self._warn_once(
                site,
                f"{site}: its audit log has {receipt.lines} lines and had {before.lines} before, so lines were taken "
                "out or it has a new home; ask the site",
            )
        self._newest[site] = receipt
        entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "site": site, **vars(receipt)}
        if self.path.exists() and self.path.stat().st_size > _LARGEST_FILE:
            self._warn_once("", f"{self.path} is full; no more receipts are kept")
            return
        append_text(self.path, json.dumps(entry) + "\n", "free some space and go on with --resume")

    def _read(self) -> dict[str, Receipt]:
        """The newest receipts of a run that goes on. What a kill or a full disk cut short is taken off."""
        if not self.path.exists():
            return {}
        whole = read_bytes(self.path).rpartition(b"\n")
        if whole[2]:
            with self.path.open("r+b") as file:
                file.truncate(len(whole[0]) + len(whole[1]))
        try:
            return {site: given[-1] for site, given in read_receipts(self.path).items()}
        except PolyclinicError as error:  # a record for others to look at; the run does not need it
            self._warn_once("", str(error))
            return {}

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self.warn(text)
