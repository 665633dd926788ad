"""The first call works, others wait for it."""

from __future__ import annotations

import threading

import pytest

from polyclinic.core.once import once


def test_threads_wait_for_the_first_one_and_nothing_is_done_twice() -> None:
    begun, may_end, seen = threading.Event(), threading.Event(), list[str]()

    @once
    def work() -> None:
        begun.set()
        may_end.wait(60)
        seen.append("worked")

    def second() -> None:
        work()
        seen.append("came back")

    threads = [threading.Thread(target=target) for target in (work, second)]
    threads[0].start()
    begun.wait(60)
    threads[1].start()
    threads[1].join(0.1)
    assert seen == []
    may_end.set()
    for thread in threads:
        thread.join(60)
    work()
    assert seen == ["worked", "came back"]


def test_work_that_failed_is_tried_again() -> None:
    calls: list[int] = []

    @once
    def work() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("not yet")

    with pytest.raises(OSError, match="not yet"):
        work()
    work()
    work()
    assert len(calls) == 2
