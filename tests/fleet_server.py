"""A server of Flower's fleet protocol that a test controls, for what only a malicious coordinator would send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flwr.app import Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

NODE = 7
Response = tuple[int, dict[str, str], bytes]


@dataclass
class Run:
    """What the server says about a run."""

    task_type: str = "flwr-serverapp"
    bundle: bytes = b""


@dataclass
class FleetServer:
    """Hands out ``messages`` one after another and keeps the ``replies``; ``hooks`` answer a path in its place."""

    runs: dict[int, Run] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    replies: list[RecordDict] = field(default_factory=list)
    hooks: dict[str, Callable[[bytes], Response | None]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    port: int = 0
    _objects: dict[str, bytes] = field(default_factory=dict)
    _pushed: dict[str, bytes] = field(default_factory=dict)
    _awaited: str = ""
    _wanted: set[str] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)

    def send(self, run: int, records: RecordDict, kind: str = "train") -> None:
        """Put a message into the queue."""
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, 1
        message = Message(records, NODE, kind)
        message.metadata.__dict__["_message_id"] = message.object_id
        self._objects |= {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        self.messages.append(message)

    def answer(self, path: str, body: bytes) -> Response:
        """The response to a request."""
        self.calls.append(path)
        hooked = self.hooks[path](body) if path in self.hooks else None
        if hooked is not None:
            return hooked
        return 200, {}, getattr(self, path.replace("-", "_"))(body).SerializeToString()

    def register_node(self, _: bytes) -> Any:
        return fleet_pb2.RegisterNodeFleetResponse()

    def activate_node(self, _: bytes) -> Any:
        return fleet_pb2.ActivateNodeResponse(node_id=NODE)

    def deactivate_node(self, _: bytes) -> Any:
        return fleet_pb2.DeactivateNodeResponse()

    def send_node_heartbeat(self, _: bytes) -> Any:
        return heartbeat_pb2.SendNodeHeartbeatResponse(success=True)

    def pull_messages(self, _: bytes) -> Any:
        if not self.messages:
            return fleet_pb2.PullMessagesResponse()
        message = self.messages.pop(0)
        proto = message_to_proto(remove_content_from_message(message))
        return fleet_pb2.PullMessagesResponse(messages_list=[proto], message_object_trees=[get_object_tree(message)])

    def get_run(self, body: bytes) -> Any:
        number = run_pb2.GetRunRequest.FromString(body).run_id
        about = run_pb2.Run(run_id=number, primary_task_type=self.runs[number].task_type, fab_hash=str(number))
        return run_pb2.GetRunResponse(run=about)

    def get_fab(self, body: bytes) -> Any:
        request = fab_pb2.GetFabRequest.FromString(body)
        fab = fab_pb2.Fab(hash_str=request.hash_str, content=self.runs[request.run_id].bundle)
        return fab_pb2.GetFabResponse(fab=fab)

    def pull_object(self, body: bytes) -> Any:
        content = self._objects[message_pb2.PullObjectRequest.FromString(body).object_id]
        return message_pb2.PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def confirm_message_received(self, _: bytes) -> Any:
        return message_pb2.ConfirmMessageReceivedResponse()

    def push_messages(self, body: bytes) -> Any:
        tree = fleet_pb2.PushMessagesRequest.FromString(body).message_object_trees[0]
        self._awaited, self._pushed = tree.object_id, {}
        wanted, todo = [], [tree]
        while todo:
            node = todo.pop()
            wanted.append(node.object_id)
            todo += node.children
        self._wanted = set(wanted)
        return fleet_pb2.PushMessagesResponse(objects_to_push=wanted, session_id="session")

    def push_object(self, body: bytes) -> Any:
        request = message_pb2.PushObjectRequest.FromString(body)
        with self._lock:  # two objects are pushed at a time, in any order
            self._pushed[request.object_id] = request.object_content
            if self._pushed.keys() == self._wanted:
                message = inflate_object_from_contents(self._awaited, dict(self._pushed))
                assert isinstance(message, Message)
                self.replies.append(message.content)
        return message_pb2.PushObjectResponse(stored=True)


@contextmanager
def serving(server: FleetServer) -> Iterator[FleetServer]:
    """Serve it on a free port of 127.0.0.1, without TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, headers, content = server.answer(self.path.removeprefix("/v1/fleet/"), body)
            self.send_response_only(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.port = http.server_address[1]
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
