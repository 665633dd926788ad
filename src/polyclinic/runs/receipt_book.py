"""The receipts of the sites' audit logs in a run folder, ``receipts.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.receipts import Receipt, read_receipts

_LARGEST_FILE = 64 * 2**20  # bytes, some 400 000 answers


class ReceiptBook:
    """Keeps every receipt, and warns once about a site whose log has become shorter or another one."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path, self.warn = path, warn
        self._newest = {site: given[-1] for site, given in read_receipts(path).items()} if path.exists() else {}
        self._warned: set[str] = set()

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
        try:
            with self.path.open("ab") as file:
                if file.tell() > _LARGEST_FILE:
                    self._warn_once("", f"{self.path} is full; no more receipts are kept")
                    return
                file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise PolyclinicError(
                f"{self.path}: cannot be written ({error.strerror or error}); free some space and go on with --resume."
            ) from error

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self.warn(text)
