"""Which Flower node is which site, and since when it is active."""

from __future__ import annotations

from typing import Any

from flwr.app import RecordDict

from flower_support import FakeGrid, Fault, Info, Play, Reply, carried
from polyclinic.deploy.coordinator.launch import Launch
from polyclinic.deploy.coordinator.server_process import _name_of
from polyclinic.engines.flower.nodes import Node, Nodes
from polyclinic.engines.flower.records import to_records
from polyclinic.exchange.messages import Description, Failure

SITES = ("east", "north", "south")


def with_(message: Any) -> Play:
    return lambda request: carried(message)


class Asking(FakeGrid):
    """Nodes without names."""

    def send_and_receive(self, messages: Any, timeout: float) -> list[Reply]:
        (message,) = messages
        reply = self.plays[f"node-{message.metadata.dst_node_id}"](None)  # type: ignore[arg-type]
        return [reply] if reply is not None else []


def test_nodes_without_keys_are_asked_for_their_name_and_may_say_anything() -> None:
    plays: dict[str, Play] = {
        "node-1": with_(Description("north", -1, {})),
        "node-2": with_(Failure("south", -1, "no")),
        "node-3": lambda _: Reply(RecordDict({})),
        "node-4": lambda _: Reply(error=Fault(1)),
        "node-5": lambda _: None,
        "node-6": lambda _: Reply(to_records({}, {"site": ["north"]})),
        "node-7": with_(Description("stranger", -1, {})),
    }
    grid = Asking(plays, nodes={name: Info(number, "") for number, name in enumerate(plays, start=1)})
    launch = Launch("run", "seed = 1", SITES, "tiny", named=False)
    nodes = Nodes(grid, SITES, lambda number: _name_of(grid, number, launch))  # type: ignore[arg-type]
    nodes.refresh()
    assert nodes.online == ("north", "south")
    node = nodes.of("north")
    assert node is not None
    assert node.number == 1


def test_a_node_has_the_name_of_its_key_and_the_time_of_its_activation() -> None:
    grid = FakeGrid({}, nodes={"a": Info(7, "south", "first"), "b": Info(8, "stranger"), "c": Info(9, "east")})
    nodes = Nodes(grid, SITES)  # type: ignore[arg-type]
    assert nodes.online == ()
    nodes.refresh()
    assert nodes.online == ("east", "south")
    assert nodes.of("south") == Node(7, "first")
    assert nodes.of("north") is None
    grid.nodes["a"] = Info(7, "south", "second")
    nodes.refresh()
    assert nodes.of("south") == Node(7, "second") != Node(7, "first")


def test_a_site_that_is_gone_was_seen_a_moment_ago() -> None:
    grid = FakeGrid({}, nodes={"a": Info(7, "south"), "b": Info(8, "stranger")})
    nodes = Nodes(grid, SITES)  # type: ignore[arg-type]
    nodes.refresh()
    del grid.nodes["a"]
    nodes.refresh()
    assert nodes.online == ()
    assert nodes.seen_within("south", 60)
    assert not nodes.seen_within("south", -1)
    assert not nodes.seen_within("north", 60), "it was never connected"
