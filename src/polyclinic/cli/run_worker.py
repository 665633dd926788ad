"""The process that carries out runs of a grid, one after another; ``runs/grid_process.py`` starts and feeds it.

Requests are lines of JSON on its stdin, answers lines of JSON on what was its stdout when it started. Whatever else is
printed, by a plugin or a crashing library too, goes to the log of the run. It ends when its stdin does, with the
process that started it, however that ends.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.quick_imports import quick_imports

_GRACE = 10.0  # seconds for an interrupted run to close its files and end what it started


def main() -> None:
    """Do what is asked for until there is nothing more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    signal.signal(signal.SIGTERM, _leave)
    answers = os.dup(1)
    os.dup2(2, 1)
    requests: SimpleQueue[dict[str, str] | None] = SimpleQueue()
    busy = Event()
    Thread(target=_read_requests, args=(requests, busy), daemon=True).start()
    while (request := requests.get()) is not None:
        problem, reusable = carry_out(request)
        busy.clear()
        with suppress(BrokenPipeError):
            os.write(answers, (json.dumps({"problem": problem, "reusable": reusable}) + "\n").encode())
        if not reusable:
            sys.exit(2)
        gc.collect()  # networks and images of the run, before the next one brings its own


def carry_out(request: dict[str, str]) -> tuple[str | None, bool]:
    """Do one run; a sentence if it failed, and whether this process is still as good as new."""
    _write_to(Path(request["log"]))
    try:
        with quick_imports():
            from polyclinic.api import run
            from polyclinic.cli.progress import ScreenObserver

        with ScreenObserver(request["title"]) as screen:
            run(request["recipe"], out=request["out"], resume=True, observer=screen)
        return None, True
    except PolyclinicError as error:
        print(f"error: {error}", file=sys.stderr)
        return str(error), True
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", False


def _write_to(log: Path) -> None:
    """Everything that is printed from now on goes to this file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _read_requests(requests: SimpleQueue[dict[str, Any] | None], busy: Event) -> None:
    """From a thread, so that the end of the other process is noticed in the middle of a run."""
    rest = b""
    while piece := os.read(0, 2**16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            busy.set()
            requests.put(json.loads(line))
    requests.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the end of the first short
    sys.exit(143)


if __name__ == "__main__":
    main()
