"""Request handlers of sites, and a Flower grid that is played, without a process or a socket."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch
from flwr.supercore.task_identity import TaskIdentity

from polyclinic.data.splits import Split
from polyclinic.deploy.site.request_handler import RequestHandler
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.engines.flower.records import from_records, to_records
from polyclinic.evaluation.protocols import protocol_parts
from polyclinic.exchange.messages import Broadcast, Failure, Message, to_tensors
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import make_recipe, recipe_text
from polyclinic.runs.plan import plan_run, prepare_items, site_data

OPEN = 'minimum_images = 1\nper_case_metrics = "named"\n'


def png_recipe(federation: str | Path, method: str = "fedavg", **sections: Any) -> Recipe:
    """A recipe over ``write_tiny_federation`` that leaves no size open."""
    table: dict[str, Any] = {
        "federation": str(federation),
        "method": method,
        "data": {"size": [16, 16]},
        "network": {"width": 2, "depth": 2, "norm": "batch"},
        "training": {"rounds": 2, "local_epochs": 1, "batch_size": 2, "lr": 0.02},
        "engine": {"device": "cpu", "gather": 0},
    }
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section} if isinstance(section, dict) else section
    return make_recipe(table)


def make_handler(
    home: Path, federation: Path, site: str = "north", policy: str | None = OPEN, log: list[str] | None = None,
    **settings: Any,
) -> RequestHandler:  # fmt: skip
    """A site whose policy lies beside its home."""
    file = home.parent / f"{home.name}-policy.toml"
    if policy is not None:
        home.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(policy)
    policy_file = str(file) if policy is not None else None
    site_settings = SiteSettings(site, str(federation), str(home), policy_file, **settings)
    return RequestHandler(site_settings, (log if log is not None else []).append)


@dataclass
class Reply:
    """What a grid hands to the server."""

    content: Any = None
    error: Any = None

    def has_error(self) -> bool:
        return self.error is not None


@dataclass
class Fault:
    """An error as Flower reports one."""

    code: int = 0
    reason: str | None = None


@dataclass
class Info:
    """A node as a grid lists it."""

    node_id: int
    name: str
    last_activated_at: str = "first"


def carried(message: Message) -> Reply:
    """A message as the reply of a site."""
    tensors, about = to_tensors(message)
    return Reply(to_records(encode(tensors), about))


def asked(message: Any) -> Request:
    """The request in what the server sent."""
    blobs, about = from_records(message.content)
    return Request.from_tensors(decode(blobs), about)


Play = Callable[[Request], Reply | None]


@dataclass
class FakeGrid:
    """Sites that are played: ``plays[site](request)`` is asked at every pull, and ``None`` is silence."""

    plays: dict[str, Play]
    pushed: list[tuple[str, Any]] = field(default_factory=list)
    pulls: int = 0
    nodes: dict[str, Info] = field(default_factory=dict)
    unsendable: set[str] = field(default_factory=set)
    on_pull: Callable[[int], None] = lambda _: None

    def __post_init__(self) -> None:
        # A message of Flower knows the task that it was made in.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.nodes = self.nodes or {site: Info(number, site) for number, site in enumerate(self.plays, start=1)}
        self._numbers = count()
        self._open: dict[str, tuple[str, Request, str]] = {}

    def get_nodes(self) -> list[Info]:
        return list(self.nodes.values())

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        identifiers = []
        for message in messages:
            node = next(info for info in self.nodes.values() if info.node_id == message.metadata.dst_node_id)
            identifier = "" if node.name in self.unsendable else f"message-{next(self._numbers)}"
            self._open[identifier] = (node.name, asked(message), node.last_activated_at)
            self.pushed.append((node.name, message))
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, identifiers: Iterable[str]) -> list[Reply]:
        self.pulls += 1
        self.on_pull(self.pulls)
        replies = []
        for identifier in identifiers:
            site, request, activation = self._open[identifier]
            is_active = site in self.nodes and self.nodes[site].last_activated_at == activation
            reply = self.plays[site](request) if is_active else None
            if reply is not None:
                del self._open[identifier]
                replies.append(reply)
        return replies


def handler_play(handler: RequestHandler) -> Play:
    """A site that is a real one."""

    def play(request: Request) -> Reply:
        tensors, about = request.to_tensors()
        return Reply(to_records(*handler.serve(encode(tensors), about)))

    return play


def site_in_process(recipe: Recipe, name: str, part: str, folder: Path) -> tuple[Site, Workspace, Split]:
    """The same site in one process, from a folder that holds all sites."""
    plan = plan_run(recipe)
    federation, resolved = plan.federation, plan.recipe
    resolved = resolved.model_copy(update={"evaluation": recipe.evaluation})
    workspace = build_workspace(resolved, federation.task)
    (protocol_part,) = [p for p in protocol_parts(federation, resolved, workspace.method.all_labels) if p.name == part]
    images = prepare_items(federation, resolved, protocol_part.items(federation, name))
    return Site(site_data(name, images, protocol_part), SiteStore(folder)), workspace, protocol_part.split


def request_for(
    act: Any, recipe: Recipe, broadcast: Broadcast | None = None, part: str = "all", split: str = ""
) -> Request:
    broadcast = broadcast or Broadcast(0, initial_weights(recipe))
    return Request(act, "run-1", part, recipe_text(recipe), split, split == "test", broadcast)


def initial_weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    plan = plan_run(with_changes(recipe, {"plugins": ()}))  # whether a site loads them is for the test to see
    return dict(plan.open_workspace().initial_exchanged)


def reason_of(reply: object) -> str:
    assert isinstance(reply, Failure), reply
    assert reply.details == ""
    return reply.reason
