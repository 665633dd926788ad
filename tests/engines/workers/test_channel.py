"""Channels: messages arrive whole and in order, with their descriptors, and an end that is gone is noticed."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from polyclinic.engines.workers.channel import Channel


@pytest.fixture
def ends() -> tuple[Channel, Channel]:
    first, second = socket.socketpair()
    return Channel(first), Channel(second)


def test_messages_come_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    large = "x" * 10**6  # more than a socket holds: the reader has to put it together
    sender = threading.Thread(target=lambda: [ends[0].send({"text": text}) for text in (large, "", "é")])
    sender.start()
    assert [ends[1].receive()[0]["text"] for _ in range(3)] == [large, "", "é"]
    sender.join()


def test_descriptors_stay_with_their_message(ends: tuple[Channel, Channel]) -> None:
    pipes = [os.pipe() for _ in range(2)]
    ends[0].send({"number": 0})
    ends[0].send({"number": 1}, [pipes[0][1], pipes[1][1]])
    ends[0].send({"number": 2})
    received = [ends[1].receive() for _ in range(3)]
    assert [len(descriptors) for _, descriptors in received] == [0, 2, 0]
    os.write(received[1][1][1], b"here")
    assert os.read(pipes[1][0], 9) == b"here"
    for descriptor in [*received[1][1], *pipes[0], *pipes[1]]:
        os.close(descriptor)


@pytest.mark.parametrize("sent", [b"", b"\x05", b"\x05\x00\x00\x00{"])
def test_an_end_that_is_gone_is_noticed_wherever_it_stopped(ends: tuple[Channel, Channel], sent: bytes) -> None:
    ends[0].end.sendall(sent)
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
