"""The inside of a worker, asked through a channel without another process."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from polyclinic.engines.workers.channel import Channel
from polyclinic.engines.workers.serving import serve
from polyclinic.engines.workers.shared_block import SharedBlock
from polyclinic.exchange.messages import Broadcast, Update, from_tensors, to_tensors
from support import assert_same, tiny_recipe, tiny_server


def test_a_worker_trains_says_whose_state_is_pending_and_settles(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(training={"local_epochs": 1}), sizes={"north": 2})
    sites = server.engine.sites  # type: ignore[attr-defined]
    alone = sites["north"].train(server.workspace, Broadcast(0, server.state.weights))
    ours, theirs = map(Channel, socket.socketpair())
    worker = threading.Thread(target=serve, args=(server.workspace, sites, theirs))
    worker.start()
    blocks = [SharedBlock.create(), SharedBlock.create()]
    blocks[0].write(*to_tensors(Broadcast(0, server.state.weights)))
    request = {"work": "train", "site": "north", "broadcast": 0, "answer": 1, "new": [0, 1], "forget": True}
    ours.send(request, [block.descriptor for block in blocks])
    reply, _ = ours.receive()
    assert reply["unsaved"] == "north"
    assert reply["seconds"] > 0
    update = from_tensors(*blocks[1].read())
    assert isinstance(update, Update)
    assert_same(alone.weights, update.weights)
    ours.send({"work": "settle", "new": []})
    assert ours.receive()[0]["unsaved"] is None
    ours.close()
    worker.join(60)
    assert not worker.is_alive()
