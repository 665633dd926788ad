"""One worker process: how it starts, and how it ends with the process that started it, however that ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

from polyclinic.core.child_processes import die_with_parent
from polyclinic.engines.workers.channel import Channel

Serve = Callable[[Channel], None]
_PARENT_CHECK_INTERVAL = 0.5


def can_start_workers() -> bool:
    """Whether this system has what workers need: sockets that carry file descriptors."""
    return hasattr(socket, "send_fds") and os.name == "posix"


def can_fork(device_type: str, threads: int) -> bool:
    """Whether a copy of this process can train: not on a GPU, with threads that a copy lacks, or on macOS."""
    return sys.platform.startswith("linux") and device_type == "cpu" and threads == 1


class WorkerProcess:
    """A process with a channel to it, and its number among the workers, which another may have after its end."""

    def __init__(self, pid: int, channel: Channel, number: int) -> None:
        self.pid, self.channel, self.number = pid, channel, number
        self.blocks: set[int] = set()
        """Numbers of the shared blocks that it has open."""
        self.unsaved: str | None = None
        """The site whose newest state is not on disk yet."""

    def stop(self) -> None:
        """End it now, whatever it does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> str:
        """Wait for its end, and say how it ended."""
        self.channel.close()
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return "it ended"
        code = os.waitstatus_to_exitcode(status)
        return f"it ended with code {code}" if code >= 0 else f"it was killed by signal {-code}"


def free_number(others: Iterable[WorkerProcess]) -> int:
    """The lowest number that no worker has."""
    taken = {worker.number for worker in others}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def fork_worker(serve: Serve, others: Sequence[WorkerProcess]) -> WorkerProcess:
    """A copy of this process that serves; it shares all memory that neither of the two changes.

    ``others`` are the workers that there are already: the new one must not hold their channels open.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Threads of this process only write files; the child starts none of them again.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        for channel in (Channel(ours), *(other.channel for other in others)):
            channel.close()
        _serve_and_exit(serve, Channel(theirs), parent)
    theirs.close()
    return WorkerProcess(pid, Channel(ours), free_number(others))


def launch_worker(command: Sequence[str], devices: Sequence[str], others: Sequence[WorkerProcess]) -> WorkerProcess:
    """A new program that opens the run itself; of ``devices`` it gets the one that its number stands for."""
    ours, theirs = socket.socketpair()
    number = free_number(others)
    options = ["--parent", str(os.getpid()), "--channel", str(theirs.fileno())]
    options += ["--device", devices[number % len(devices)]]
    with theirs:
        process = subprocess.Popen([*command, *options], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    process.returncode = 0  # it is waited for by its id, as the forked ones are
    return WorkerProcess(process.pid, Channel(ours), number)


def _serve_and_exit(serve: Serve, channel: Channel, parent: int) -> NoReturn:
    """The whole life of a forked child: nothing of the parent's own end, such as its exit handlers, may run here."""
    code = 1
    try:
        prepare_child(parent)
        serve(channel)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def prepare_child(parent: int) -> None:
    """End with the parent, and leave Ctrl-C, which reaches all processes of a terminal, to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that took effect
        os._exit(1)
    if not sys.platform.startswith("linux"):
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_INTERVAL)
    os._exit(1)
