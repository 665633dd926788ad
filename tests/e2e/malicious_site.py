"""A malicious site: everything is real but the worker, which spoils its updates, in another way each round.

``python malicious_site.py NAME DATA HOME SERVER KEY CA``
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import SiteSupervisor
from polyclinic.deploy.site.worker_process import SETTINGS_FILE, WorkerProcess
from polyclinic.exchange.messages import Message, Update

TRICKS = ("nan", "shape", "garbage", "stale", "enormous", "scaled")


class MaliciousWorker(WorkerProcess):
    """Starts this file."""

    def command_with(self, channel: int) -> list[str]:
        return [sys.executable, __file__, "worker", str(self.home / SETTINGS_FILE), str(channel)]


class MaliciousSite(SiteSupervisor):
    worker_type = MaliciousWorker


def spoil(reply: Message) -> Message:
    """An honest update, spoilt by the trick of its round."""
    if not isinstance(reply, Update):
        return reply
    trick = TRICKS[reply.round % len(TRICKS)]
    name = next(n for n, t in reply.weights.items() if t.is_floating_point() and t.dim() > 1)
    if trick == "nan":
        return replace(reply, weights={**reply.weights, name: reply.weights[name] * torch.nan})
    if trick == "shape":
        return replace(reply, weights={**reply.weights, name: torch.zeros(3, 2**18)})
    if trick == "stale":
        return replace(reply, round=reply.round - 1)
    if trick == "enormous":
        spoilt = reply.weights[name].clone()
        spoilt.view(-1)[0] = 3e38
        return replace(reply, weights={**reply.weights, name: spoilt})
    if trick == "scaled":
        return replace(reply, weights={n: t * 10 if t.is_floating_point() else t for n, t in reply.weights.items()})
    return reply


def work(settings_file: Path, channel: int) -> None:
    """The worker's loop, with tricks."""
    import json

    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.deploy.site.worker_channel import receive, send
    from polyclinic.exchange.messages import to_tensors
    from polyclinic.exchange.request import Request
    from polyclinic.exchange.serialization import decode, encode

    settings = SiteSettings(**json.loads(settings_file.read_text()))
    handler = RequestHandler(settings)
    with Connection(channel) as connection:
        while True:
            blobs, about = receive(connection)
            request = Request.from_tensors(decode(blobs), about)
            tensors, plain = to_tensors(spoil(handler.answer(request)))
            sent = encode(tensors)
            if request.act == "train" and TRICKS[request.broadcast.round % len(TRICKS)] == "garbage":
                sent = {"weights": b"no tensors at all"}
            send(connection, sent, plain)


def main() -> None:
    if sys.argv[1] == "worker":
        work(Path(sys.argv[2]), int(sys.argv[3]))
    name, data, home, server, key, ca = sys.argv[1:]
    settings = SiteSettings(
        name, str(Path(data).resolve()), str(Path(home).resolve()), str(Path("open.toml").resolve())
    )
    connection = ServerConnection(server, Path(key), Path(ca))
    with MaliciousSite(settings, connection, lambda text: print(text, flush=True)) as supervisor:
        while True:
            supervisor.poll()
            time.sleep(0.2)


if __name__ == "__main__":
    main()
