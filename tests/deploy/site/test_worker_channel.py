"""The channel between a site's process and its worker: messages of any size, and no address."""

from __future__ import annotations

from multiprocessing.connection import Connection
from threading import Thread

import pytest

from polyclinic.deploy.site.worker_channel import channel_pair, receive, send


def test_messages_pass_both_ways_and_its_end_is_seen() -> None:
    ours, theirs = channel_pair()
    assert not theirs.getsockname(), "a socket without a name cannot be reached"
    assert not theirs.get_inheritable()
    worker = Connection(theirs.detach())
    blobs, about = {"weights": b"\x00" * 3_000_000, "shared/a": b""}, {"round": 1}
    sender = Thread(target=send, args=(ours, blobs, about))
    sender.start()
    assert receive(worker) == (blobs, about)
    sender.join(60)
    send(worker, {}, {"done": True})
    assert receive(ours) == ({}, {"done": True})
    worker.close()
    with pytest.raises(EOFError):
        receive(ours)
