"""A site's end of Flower's fleet protocol: connect, take a request, send its answer.

This takes the place of Flower's SuperNode, which starts whatever program a run names. Nothing here starts a program,
imports anything that was sent, or opens a port: a request is records of bytes and plain data, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read by Flower when it is imported

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_private_key
from flwr.app import Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import printable_line
from polyclinic.engines.flower.bounded_arrays import bounded_arrays
from polyclinic.engines.flower.bounded_http import BoundedFleetHttpClient, VersionHeaders

if TYPE_CHECKING:
    from flwr.proto.message_pb2 import ObjectTree

REASON_HEADER, TIME_HEADER = "polyclinic-reason", "polyclinic-time"
_MOST_OBJECTS = 20_000
_PULL_TIMEOUT = 3600.0  # seconds for all objects of one request
_CLOCK_TOLERANCE = 4.0  # seconds; a SuperLink accepts requests from at most 5 s in the future
_UNAVAILABLE = (502, 503, 504)


class ConnectionLostError(Exception):
    """The server cannot be reached, or no longer knows this connection: connect again."""


class RejectedError(Exception):
    """The server does not accept this site; its text says why."""

    def __init__(self, reason: str, ahead: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        """``key``, ``clock``, ``active`` (another connection with this key), or what the server said."""
        self.ahead = ahead
        """Seconds that this machine's clock is ahead of the server's, if that was told."""


@dataclass(frozen=True)
class Incoming:
    """A message of the server, before its content is fetched."""

    message: Message
    tree: ObjectTree

    @property
    def run(self) -> int:
        """Flower's number of the run."""
        return int(self.message.metadata.run_id)


@dataclass(frozen=True)
class RunInfo:
    """What a server says about a run: the type of its main program, and its bundle of files."""

    task_type: str
    bundle: bytes


class FleetClient:
    """One connection of a site to a server; ``key`` and ``ca`` are files, or ``None`` without authentication."""

    def __init__(self, server: str, key: Path | None, ca: Path | None) -> None:
        private, public = _key_pair(key)
        self._public = public_key_to_bytes(public)
        self._registers_itself = key is None
        self._node: Node | None = None
        self._http = BoundedFleetHttpClient.from_server_address(
            server, ca is None, None if ca is None else str(ca),
            interceptors=[VersionHeaders(), NodeAuthHttpInterceptor(private, public)],
        )  # fmt: skip

    def close(self) -> None:
        """Close the connection without a word to the server."""
        self._http.close()

    def activate(self) -> int:
        """Tell the server that this site is there; gives back its node's number."""
        with _errors():
            if self._registers_itself:
                self._http.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
            request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            self._node = Node(node_id=self._http.ActivateNode(request).node_id)
        return int(self._node.node_id)

    def deactivate(self, number: int | None = None) -> None:
        """Tell the server that this site leaves, or that an earlier connection of it has ended; errors are ignored."""
        number = number if number is not None else (self._node.node_id if self._node else None)
        if number is not None:
            with suppress(Exception):  # it is a courtesy, and the server may answer anything
                self._http.DeactivateNode(DeactivateNodeRequest(node_id=number))

    def heartbeat(self) -> None:
        """Tell the server that this site is still there."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        with _errors():
            if not self._http.SendNodeHeartbeat(request).success:
                raise ConnectionLostError("the server no longer knows this connection")

    def next_message(self) -> Incoming | None:
        """The next message for this site, if there is one."""
        with _errors():
            response = self._http.PullMessages(PullMessagesRequest(node=self._node))
            if not response.messages_list or not response.message_object_trees:
                return None
            return Incoming(message_from_proto(response.messages_list[0]), response.message_object_trees[0])

    def run_info(self, run: int) -> RunInfo:
        """What the server says about a run."""
        with _errors():
            about = self._http.GetRun(GetRunRequest(node=self._node, run_id=run)).run
            bundle = self._http.GetFab(GetFabRequest(node=self._node, hash_str=about.fab_hash, run_id=run)).fab
            return RunInfo(about.primary_task_type, bundle.content)

    def fetch(self, incoming: Incoming, limit: int) -> RecordDict:
        """The content of a message of at most ``limit`` bytes; raises ``PolyclinicError`` for anything else."""
        assert self._node is not None
        identifiers = list(dict.fromkeys(tree.object_id for tree in iterate_object_tree(incoming.tree)))
        if len(identifiers) > _MOST_OBJECTS:
            raise PolyclinicError(f"the request consists of {len(identifiers)} objects, at most {_MOST_OBJECTS} fit")
        pull = make_pull_object_fn_protobuf(self._http.PullObject, self._node, incoming.run)
        left = [limit]

        def pull_counted(identifier: str) -> bytes:
            content = pull(identifier)
            left[0] -= len(content)
            if left[0] < 0:
                raise PolyclinicError(f"the request is larger than {limit / 1e6:g} MB (max_mb_received)")
            return content

        with _errors():
            contents = pull_objects(identifiers, pull_counted, max_time=_PULL_TIMEOUT)
            confirm = make_confirm_message_received_fn_protobuf(
                self._http.ConfirmMessageReceived, self._node, incoming.run
            )
            confirm(incoming.message.metadata.message_id)
        with bounded_arrays(limit):
            message = inflate_object_from_contents(incoming.tree.object_id, contents)
        if not isinstance(message, Message) or not message.has_content():
            raise PolyclinicError("the request has no content")
        return message.content

    def reply(self, incoming: Incoming, records: RecordDict) -> None:
        """Send the answer to a message."""
        assert self._node is not None
        message = Message(records, reply_to=incoming.message)
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute(), _errors():
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
            response = self._http.PushMessages(request)
            push = make_push_object_fn_protobuf(
                self._http.PushObject,
                self._node,
                incoming.run,
                response.session_id,
            )
            push_objects(get_all_nested_objects(message), push, object_ids_to_push=set(response.objects_to_push))


def _key_pair(key: Path | None) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    if key is None:
        return generate_key_pairs()
    private = load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise PolyclinicError(f"{key}: not an elliptic-curve key; make one with polyclinic keys site.")
    return private, private.public_key()


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of HTTP as one of two kinds: the connection is lost, or the server rejects this site."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        response = error.response
        if response.status_code in _UNAVAILABLE:
            raise ConnectionLostError(f"the server is starting or busy (HTTP {response.status_code})") from error
        raise _rejection(response) from error
    except httpx.HTTPError as error:
        raise ConnectionLostError(f"{type(error).__name__}: {error}") from error


def _rejection(response: httpx.Response) -> Exception:
    """What a server's refusal means."""
    ahead = _seconds_ahead(response)
    named = response.headers.get(REASON_HEADER)
    flower: Any = FlowerError.from_json(response.text)
    code = flower.code if flower else None
    if named == "clock" or (response.status_code == httpx.codes.UNAUTHORIZED and _is_off(ahead)):
        return RejectedError("clock", ahead)
    if code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED and named is None:
        return RejectedError("active")
    if code in (ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, ApiErrorCode.FLEET_GET_RUN_FAILED):
        return RunEndedError("the run has ended")
    refused = response.status_code == httpx.codes.UNAUTHORIZED or named in ("unknown-key", "signature")
    if refused or code == ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED:
        return RejectedError("key")
    words = flower.message if flower else f"HTTP {response.status_code}"
    return RejectedError(printable_line(str(words)))


class RunEndedError(Exception):
    """The run that a message belongs to has ended meanwhile; the message is dropped."""


def _seconds_ahead(response: httpx.Response) -> float | None:
    """How far this machine's clock is ahead of the server's: polyclinic's gate tells it, else the date of HTTP."""
    told, now = response.headers.get(TIME_HEADER), datetime.now(UTC)
    with suppress(ValueError, TypeError):
        if told:
            return (now - datetime.fromisoformat(told)).total_seconds()
        return (
            now - parsedate_to_datetime(response.headers.get("date", ""))
        ).total_seconds() - 0.5  # cut to whole seconds
    return None


def _is_off(ahead: float | None) -> bool:
    return ahead is not None and not -300 < ahead < _CLOCK_TOLERANCE
