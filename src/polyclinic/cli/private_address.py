"""Open a secret address in the browser without telling it to other users of this machine."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer


@contextmanager
def open_privately(address: str, opens: bool = True) -> Iterator[None]:
    """Open ``address``; the program that opens it gets the name of a private file, as all can read its arguments.

    The file leads to the address, and is there as long as the context lasts.
    """
    if not opens:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="polyclinic-watch-") as folder:  # its owner's alone
        file = Path(folder) / "open.html"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(address)}">')
        typer.launch(file.as_uri())
        yield
