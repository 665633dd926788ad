"""Which Flower node is which site, and since when it is active."""

from __future__ import annotations

from flower_support import FakeGrid, Info
from polyclinic.engines.flower.nodes import Node, Nodes

SITES = ("east", "north", "south")


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
