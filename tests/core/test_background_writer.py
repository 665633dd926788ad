"""Files beside the work: order, errors, and a wait that was interrupted."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from polyclinic.core.background_writer import BackgroundWriter


def test_a_background_write_is_done_when_the_block_ends_and_one_waits_for_the_one_before() -> None:
    go, order = threading.Event(), []

    def first() -> None:
        go.wait(5)
        order.append("first")

    with BackgroundWriter() as writer:
        writer.submit(first)
        assert order == []
        go.set()
        writer.submit(lambda: order.append("second"))
        assert order[0] == "first"
    assert order == ["first", "second"]


def full() -> None:
    raise OSError("no space")


def test_an_error_of_a_background_write_is_raised_once_where_it_is_waited_for() -> None:
    with pytest.raises(OSError, match="no space"), BackgroundWriter() as writer:
        writer.submit(full)
    writer.wait()
    writer.submit(full)
    with pytest.raises(OSError, match="no space"):
        writer.submit(lambda: None)
    writer.close()


def test_after_its_end_a_writer_can_be_used_again() -> None:
    writer, done = BackgroundWriter(), []
    for number in range(2):
        writer.submit(lambda number=number: done.append(number))
        writer.close()
    assert done == [0, 1]


def test_a_wait_that_is_interrupted_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a file is written: whoever ends the run still waits for the file."""
    go, done = threading.Event(), []

    def slow() -> None:
        go.wait(5)
        done.append(True)

    writer = BackgroundWriter()
    writer.submit(slow)
    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    go.set()
    writer.close()
    assert done
