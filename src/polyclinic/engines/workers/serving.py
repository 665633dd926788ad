"""The inside of a worker process: takes one request after another, as the sites do their work in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from polyclinic.core.background_writer import BackgroundWriter
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.timing import recording
from polyclinic.engines.inprocess import guarded
from polyclinic.engines.workers.channel import Channel
from polyclinic.engines.workers.shared_block import SharedBlock
from polyclinic.exchange.messages import Broadcast, Evaluation, Failure, Update, from_tensors, to_tensors
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import Workspace


def serve(workspace: Workspace, sites: dict[str, Site], channel: Channel) -> None:
    """Answer until the engine closes the channel."""
    if (timeline := recording()) is not None:
        timeline.restart()  # a forked process has that of the one that it came from
    with BackgroundWriter() as writer:
        worker = _Worker(workspace, sites, writer)
        while True:
            try:
                request, descriptors = channel.receive()
            except (EOFError, ConnectionResetError):
                return
            channel.send(worker.answer(request, descriptors))


class _Worker:
    def __init__(self, workspace: Workspace, sites: dict[str, Site], writer: BackgroundWriter) -> None:
        self.workspace, self.sites, self.writer = workspace, sites, writer
        self.blocks: dict[int, SharedBlock] = {}
        self.unsaved: str | None = None

    def answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Do what a request asks for; the answer's tensors are in the block that the request names."""
        self.blocks |= {
            number: SharedBlock(descriptor) for number, descriptor in zip(request["new"], descriptors, strict=True)
        }
        started = time.perf_counter()
        try:
            if request["work"] == "settle":
                self.writer.wait()
                self.unsaved = None
            else:
                self.blocks[request["answer"]].write(*to_tensors(self._work(request)))
        except PolyclinicError as error:  # this machine's fault, not the site's: such as a full disk
            return {"error": str(error)}
        timeline = recording()
        spans = None if timeline is None else timeline.take()
        return {"unsaved": self.unsaved, "seconds": time.perf_counter() - started, "spans": spans}

    def _work(self, request: dict[str, Any]) -> Update | Evaluation | Failure:
        broadcast = cast(Broadcast, from_tensors(*self.blocks[request["broadcast"]].read()))
        site = self.sites[request["site"]]
        if request["forget"]:  # another worker has trained the site since this one did
            site.store.memory.drop(site.store.folder)
        if request["work"] == "train":
            return guarded(
                site.name, broadcast.round, partial(site.train, self.workspace, broadcast, partial(self._submit, site))
            )
        split, detailed = request["split"], request["detailed"]
        return guarded(site.name, broadcast.round, partial(site.evaluate, self.workspace, broadcast, split, detailed))

    def _submit(self, site: Site, write: Callable[[], None]) -> None:
        self.writer.submit(write)  # waits for the one before, so that at most this site's state is not on disk
        self.unsaved = site.name
