"""A process that is restarted after a pause that grows, and whose output is read line by line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyclinic.deploy import supervised_process as module
from polyclinic.deploy.supervised_process import SupervisedProcess


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[[str], SupervisedProcess]]:
    """A supervised shell for each script."""
    processes: list[SupervisedProcess] = []

    def make(script: str) -> SupervisedProcess:
        log = (tmp_path / f"{len(processes)}.log").open("wb")
        processes.append(SupervisedProcess(lambda: ["sh", "-c", script], dict(os.environ), log))
        return processes[-1]

    yield make
    for process in processes:
        process.stop(grace=2)
        process.log.close()


def test_a_process_that_ends_early_is_restarted_after_pauses_that_double_up_to_a_limit(
    shell: Callable[[str], SupervisedProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    process = shell("exit 3")
    assert process.restart_if_ended() is None, "what was never started is not restarted"
    process.start()
    pauses = []
    for _ in range(7):
        assert process.process is not None
        process.process.wait(60)
        ended = process.process
        pauses.append(process.restart_if_ended())
        assert process.restart_if_ended() is None
        assert process.process is ended, "not before the pause is over"
        clock[0] += 10
        assert process.restart_if_ended() is None
        assert process.process is not ended
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    process.process.wait(60)
    clock[0] += 31
    assert process.restart_if_ended() == 0.5, "it ran long enough to start with a short pause again"


def test_a_running_process_is_left_alone_and_a_stopped_one_stays_stopped(
    shell: Callable[[str], SupervisedProcess],
) -> None:
    process = shell("exec sleep 60")
    process.start()
    assert process.is_running
    assert process.restart_if_ended() is None
    process.stop()
    assert not process.is_running
    assert process.restart_if_ended() is None
    assert process.process is None


def test_only_complete_lines_are_read_and_each_once(shell: Callable[[str], SupervisedProcess]) -> None:
    process = shell("exit 0")
    process.log.write(b"one\ntwo\nhal")
    process.log.flush()
    assert process.new_lines() == ["one", "two"]
    assert process.new_lines() == []
    process.log.write(b"f\n\xff\n")
    process.log.flush()
    assert process.new_lines() == ["half", "\ufffd"]
