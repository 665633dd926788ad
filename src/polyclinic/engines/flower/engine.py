"""The Flower engine at the server: sends a request to all sites at once, yields the answers in the order of the sites.

A site that is disconnected, late, restarted or sends an invalid answer is a failure with a reason; the round goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, Queue
from threading import Thread
from typing import Any, ClassVar, TypeVar

from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import printable_line
from polyclinic.engines.flower.bounded_arrays import bounded_arrays
from polyclinic.engines.flower.nodes import Node, Nodes
from polyclinic.engines.flower.records import from_records, to_records
from polyclinic.exchange.checks import scores_problem
from polyclinic.exchange.messages import (
    Broadcast,
    Description,
    Evaluation,
    Failure,
    Message,
    Tensors,
    Update,
    from_tensors,
)
from polyclinic.exchange.receipts import Receipt, take_receipt
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer

_Answer = TypeVar("_Answer", bound=Message)
_FIRST_POLL, _LAST_POLL = 0.1, 0.5  # seconds between two polls for an answer; the interval grows in a long round
_POLL_PER_SITE = 0.02  # seconds by which the longest interval grows with each site, so that many do not fill a core
_REFRESH_INTERVAL = 2.0  # seconds between two checks of which sites are connected
_LONGEST_TTL = 7 * 24 * 3600.0
_DESCRIBE_DEADLINE = 300.0  # seconds for a request without training
# Without a deadline: ten times as long as half of the sites took, ten minutes at least.
_SHORTEST_TIMEOUT, _TIMEOUT_FACTOR = 600.0, 10.0
_LOST_CODES = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
_MESSAGE_TYPES = {"describe": "query", "train": "train", "evaluate": "evaluate"}
_STATUSES = {"describe": "asked", "train": "training", "evaluate": "scoring"}


@dataclass
class _Sent:
    """A request that was sent: to which node (and activation of it), and Flower's id of the message."""

    node: Node
    message: str


@dataclass
class FlowerEngine(Engine):
    """Carries messages over a Flower grid. Sites write what they must remember before they answer.

    ``deadline`` is the time that a site has for an answer, ``grace`` the time that it may be disconnected, in seconds.
    Without a deadline a site may take ten times as long as half of the sites took, and ten minutes at least.
    """

    grid: Grid
    nodes: Nodes
    run: str
    part: str
    recipe: str
    limit: int
    """The most bytes of tensors that an answer may hold."""
    deadline: float | None = None
    grace: float = 60.0
    observer: Observer = field(default_factory=Observer)
    task: dict[str, Any] = field(default_factory=dict)
    """The task that the sites agreed on; a site with another task refuses."""
    on_receipt: Callable[[str, Receipt], None] = lambda *_: None
    """Is told how a site's audit log ends, with each of its answers."""
    late: dict[str, int] = field(default_factory=dict)
    """By site, the last round whose training it did not finish in time: it may still be at work on it."""
    partial: ClassVar[bool] = True

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        """Let all sites train side by side."""
        yield from self._ask(self._request("train", broadcast), sites, Update)

    def evaluate(
        self, broadcast: Broadcast, sites: Sequence[str], split: str, detailed: bool
    ) -> Iterator[Evaluation | Failure]:
        """Let all sites score side by side; a validation does not wait for those that were late in its round."""
        request = replace(self._request("evaluate", broadcast), split=split, detailed=detailed)
        late = [site for site in sites if not detailed and self.late.get(site) == broadcast.round]
        answers = self._ask(request, [site for site in sites if site not in late], Evaluation)
        for site in sites:
            if site in late:
                yield Failure(site, broadcast.round, "was late in this round's training, so it is not asked")
                continue
            answer = next(answers)
            if isinstance(answer, Evaluation) and answer.note:
                self.observer.on_message(f"{answer.site}: {answer.note}")
            yield answer

    def online(self) -> tuple[str, ...]:
        """Sites that are connected now."""
        self.nodes.refresh()
        return self.nodes.online

    def describe(self, sites: Sequence[str]) -> Iterator[Description | Failure]:
        """Ask sites to describe themselves, before any weight leaves the server."""
        with_deadline = replace(self, deadline=min(self.deadline or _DESCRIBE_DEADLINE, _DESCRIBE_DEADLINE))
        yield from with_deadline._ask(self._request("describe", Broadcast(-1, {})), sites, Description)

    def model(self, broadcast: Broadcast, site: str) -> Tensors:  # noqa: ARG002
        """Personal weights do not leave a site."""
        raise PolyclinicError(
            f"Testing the model of site '{site}' elsewhere would carry its personal weights out of it; use a method "
            "without kept weights, or the engine inprocess, for protocol.transfer and leave-one-site-out."
        )

    def _request(self, act: str, broadcast: Broadcast) -> Request:
        request = Request(act, self.run, self.part, self.recipe, task=self.task)  # type: ignore[arg-type]
        return replace(request, broadcast=broadcast)

    def _ask(self, request: Request, sites: Sequence[str], kind: type[_Answer]) -> Iterator[_Answer | Failure]:
        """Send to all sites, then yield their answers in order; an answer is yielded while later sites still work."""
        exchange = _Exchange(self, request, sites)
        for site in sites:
            answer = exchange.answer_of(site)
            if not isinstance(answer, Failure) and not isinstance(answer, kind):
                answer = Failure(site, request.broadcast.round, f"sent a {type(answer).__name__} as its answer")
                self.observer.on_status(request.broadcast.round, site, "failed")
            yield answer


class _Exchange:
    """One request to several sites, and the answers so far.

    A thread waits for each site, so that a slow or endless download of one answer does not delay the others.
    """

    def __init__(self, engine: FlowerEngine, request: Request, sites: Sequence[str]) -> None:
        self.engine, self.request = engine, request
        self.number = request.broadcast.round
        tensors, self.about = request.to_tensors()
        self.arrays = to_records(encode(tensors), {}).array_records
        self.answers: dict[str, Message] = {}
        self.sent: dict[str, _Sent] = {}
        self.lost: set[str] = set()
        self.asked = tuple(sites)
        self.half_answered_after: float | None = None
        self.replies: Queue[tuple[str, str, FlowerMessage | Exception]] = Queue()
        self.started = self.refreshed = time.monotonic()
        engine.nodes.refresh()
        for site in sites:
            self._send(site)

    def answer_of(self, site: str) -> Message:
        """Wait for a site's answer; answers of other sites that arrive meanwhile are stored."""
        while site not in self.answers:
            try:
                sender, message, reply = self.replies.get(timeout=_FIRST_POLL)
            except Empty:
                self._check_sites()  # not before: what has arrived came in time, however long the server was busy
                continue
            if self.sent[sender].message == message and sender not in self.answers:
                self._take(sender, reply)
        answer = self.answers[site]
        self.answers[site] = Failure(site, self.number, "was given already")  # frees the answer's memory
        return answer

    def _send(self, site: str) -> None:
        engine = self.engine
        node = engine.nodes.of(site)
        if node is None:
            self._miss(site)
            return
        # The tensors are the same objects for every site, so that Flower takes them in once.
        content = RecordDict({**self.arrays, **to_records({}, {**self.about, "site": site})})
        message = FlowerMessage(
            content, node.number, _MESSAGE_TYPES[self.request.act], ttl=engine.deadline or _LONGEST_TTL,
            group_id=str(self.number + 1),
        )  # fmt: skip
        identifiers = list(engine.grid.push_messages([message]))
        if not identifiers or not identifiers[0]:
            self._fail(site, "failed", "could not be sent its message (see the server's log)")
            return
        self.lost.discard(site)
        self.sent[site] = _Sent(node, identifiers[0])
        Thread(target=self._wait, args=(site, identifiers[0]), daemon=True).start()
        engine.observer.on_status(self.number, site, _STATUSES[self.request.act])

    def _wait(self, site: str, message: str) -> None:
        """Poll for an answer until it arrives or is no longer expected; runs in a thread."""
        pause = _FIRST_POLL
        while site not in self.answers and self.sent[site].message == message:
            try:
                with bounded_arrays(self.engine.limit):
                    replies = list(self.engine.grid.pull_messages([message]))
                if replies:
                    self.replies.put((site, message, replies[0]))
                    return
            except Exception as error:  # an exception in a thread is lost, and the round would never end
                self.replies.put((site, message, error))
                return
            time.sleep(pause)
            pause = min(pause * 1.2, max(_LAST_POLL, _POLL_PER_SITE * len(self.asked)))

    def _take(self, site: str, reply: FlowerMessage | Exception) -> None:
        if not isinstance(reply, Exception) and reply.has_error() and reply.error.code in _LOST_CODES:
            self._miss(site)
            return
        answer = self.answers[site] = self._read(site, reply)
        status = "done"
        if isinstance(answer, Failure):
            status = "refused" if answer.reason.startswith("refused:") else "failed"
        self.engine.observer.on_status(self.number, site, status)

    def _miss(self, site: str) -> None:
        """A site is disconnected: within its grace it may come back, after that it is a failure."""
        if self.engine.nodes.seen_within(site, self.engine.grace):
            self.lost.add(site)
            self.engine.observer.on_status(self.number, site, "away")
        else:
            self._fail(site, "away", "went away during the round" if site in self.sent else "is not connected")

    def _read(self, site: str, reply: FlowerMessage | Exception) -> Message:
        """The answer in a reply; an invalid one becomes a failure of its sender."""
        if isinstance(reply, Exception):
            return self._failure(site, f"gave an answer that could not be fetched ({type(reply).__name__}: {reply})")
        if reply.has_error():
            return self._failure(site, f"its app failed: {reply.error.reason or reply.error.code}")
        try:
            blobs, about = from_records(reply.content, self.engine.limit)
            receipt = take_receipt(about)
            answer = from_tensors(decode(blobs), about)
        except Exception as error:  # hostile bytes may raise anything, and must not end the round
            return self._failure(site, f"sent an answer that cannot be read: {error}")
        if isinstance(answer, Broadcast) or answer.site != site:
            return self._failure(site, f"answered as '{getattr(answer, 'site', 'the server')}'")
        if receipt is not None:
            self.engine.on_receipt(site, receipt)
        if isinstance(answer, Failure):
            return self._failure(site, answer.reason)
        if isinstance(answer, Evaluation):
            problem = scores_problem(answer)
            answer.note = printable_line(answer.note)
            return answer if problem is None else self._failure(site, f"sent scores that cannot be used: {problem}")
        if isinstance(answer, Description):
            answer.refusal = printable_line(answer.refusal)
        return answer

    def _check_sites(self) -> None:
        """Fail sites that are late or gone, and send the request again to sites that reconnected or restarted."""
        now, engine = time.monotonic(), self.engine
        waiting = [site for site in {*self.sent, *self.lost} if site not in self.answers]
        deadline = engine.deadline or self._timeout(now)
        if deadline is not None and now - self.started > deadline:
            for site in waiting:
                if self.request.act == "train":
                    engine.late[site] = self.number
                self._fail(site, "late", f"is late: no answer within the deadline of {deadline:.3g} s")
            return
        if now - self.refreshed < _REFRESH_INTERVAL:
            return
        self.refreshed = now
        engine.nodes.refresh()
        for site in waiting:
            node = engine.nodes.of(site)
            if node is None:
                self._miss(site)
            elif site in self.lost or node != self.sent[site].node:
                engine.observer.on_message(f"{site} is back; sending its task again")
                self._send(site)

    def _timeout(self, now: float) -> float | None:
        """The time limit without a deadline: none until half of the sites answered, then a multiple of that time."""
        if self.half_answered_after is None and 2 * len(self.answers) >= len(self.asked):
            self.half_answered_after = now - self.started
        if self.half_answered_after is None:
            return None
        return max(_SHORTEST_TIMEOUT, _TIMEOUT_FACTOR * self.half_answered_after)

    def _fail(self, site: str, status: str, reason: str) -> None:
        self.answers[site] = self._failure(site, reason)
        self.engine.observer.on_status(self.number, site, status)

    def _failure(self, site: str, reason: str) -> Failure:
        return Failure(site, self.number, printable_line(reason))
