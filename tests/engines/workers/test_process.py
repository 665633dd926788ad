"""Worker processes: how they start and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from polyclinic.deploy.processes import is_alive, start_time
from polyclinic.engines.workers.channel import Channel
from polyclinic.engines.workers.process import WorkerProcess, can_fork, fork_worker, free_number, launch_worker

_ANSWER = """
import argparse, socket
from polyclinic.engines.workers.channel import Channel
parser = argparse.ArgumentParser()
for name in ("--parent", "--channel", "--device"):
    parser.add_argument(name)
options = parser.parse_args()
channel = Channel(socket.socket(fileno=int(options.channel)))
channel.send({"device": options.device, "parent": int(options.parent)})
"""
_KILLED = """
import os, signal, time
from polyclinic.engines.workers.process import fork_worker
worker = fork_worker(lambda channel: time.sleep(600), [])
print(worker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_fork_serves_and_its_end_is_told() -> None:
    worker = fork_worker(lambda channel: channel.send({"pid": os.getpid()}), [])
    assert worker.channel.receive()[0] == {"pid": worker.pid}
    assert worker.wait() == "it ended with code 0"


def test_a_fork_does_not_keep_the_channels_of_its_siblings_open() -> None:
    def wait_for_end(channel: Channel) -> None:
        with pytest.raises(EOFError):
            channel.receive()

    workers: list[WorkerProcess] = []
    for _ in range(3):
        workers.append(fork_worker(wait_for_end, workers))
    assert [worker.wait() for worker in workers] == ["it ended with code 0"] * 3


def test_a_fork_that_fails_ends_with_a_code_and_ctrl_c_does_not_reach_it(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(channel: Channel) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("not my day")

    assert fork_worker(fail, []).wait() == "it ended with code 1"
    assert "not my day" in capfd.readouterr().err


def test_a_stopped_worker_is_gone() -> None:
    worker = fork_worker(lambda channel: channel.receive(), [])  # type: ignore[arg-type,return-value]
    started = start_time(worker.pid)
    worker.stop()
    assert not is_alive(worker.pid, started)
    assert worker.wait() == "it ended"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a thread of the worker looks after it")
def test_kill_9_of_the_parent_leaves_no_worker() -> None:
    parent = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, timeout=120)
    pid = int(parent.stdout)
    for _ in range(200):
        if not is_alive(pid, start_time(pid)):
            return
        subprocess.run(["sleep", "0.05"], check=True)
    pytest.fail("the worker lives on")


def test_a_program_is_started_with_a_channel_and_the_device_of_its_number() -> None:
    taken = WorkerProcess(0, Channel(None), 0)  # type: ignore[arg-type]
    worker = launch_worker([sys.executable, "-c", _ANSWER], ["cuda:0", "cuda:1"], [taken])
    assert worker.channel.receive()[0] == {"device": "cuda:1", "parent": os.getpid()}
    assert worker.wait() == "it ended with code 0"


def test_numbers_and_where_forking_is_allowed() -> None:
    workers = [WorkerProcess(0, Channel(None), number) for number in (0, 2)]  # type: ignore[arg-type]
    assert free_number(workers) == 1
    assert free_number([]) == 0
    assert not can_fork("cuda", 1)
    assert not can_fork("cpu", 2)
