"""A site of a simulation: the request handler is in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flower_support import OPEN, png_recipe
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.simulated_site import simulate_request, site_names
from polyclinic.exchange.messages import Description, Failure, from_tensors
from polyclinic.exchange.receipts import take_receipt
from polyclinic.exchange.request import Request
from polyclinic.exchange.serialization import decode, encode
from polyclinic.recipe.files import recipe_text


def describe(federation: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    tensors, about = Request("describe", "run", "all", recipe_text(png_recipe(federation))).to_tensors()
    return encode(tensors), about


def test_in_a_simulation_the_site_is_in_this_process(tiny_federation: Path, tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "policy.toml").write_text(OPEN)
    config = {"sites": '["north", "south"]', "data": str(tiny_federation), "homes": str(sites), "device": "cpu"}
    context: Any = SimpleNamespace(node_config={"partition-id": 1, "num-partitions": 2}, run_config=config)
    answered, plain = simulate_request(*describe(tiny_federation), context)
    assert take_receipt(plain) is not None
    answer = from_tensors(decode(answered), plain)
    assert isinstance(answer, Description)
    assert (answer.site, sum(answer.images.values())) == ("south", 4)
    assert (sites / "south" / "audit.jsonl").exists()
    answered, plain = simulate_request({}, {}, context)
    take_receipt(plain)
    assert isinstance(from_tensors(decode(answered), plain), Failure)


@pytest.mark.parametrize(
    ("node", "config", "sentence"),
    [
        ({}, {}, "in Flower's simulation only; start a site of a real federation with polyclinic site"),
        ({"site": "north", "data": "/srv"}, {}, "simulation only"),
        ({"partition-id": 0}, {"sites": "north"}, "needs the federation's folder"),
        ({"partition-id": 1}, {"sites": "north", "data": "x"}, "got 1 names for node 2"),
        ({"partition-id": 1}, {"sites": "[", "data": "x"}, "expected names such as"),
    ],
)
def test_what_is_missing_is_said(node: Any, config: Any, sentence: str) -> None:
    with pytest.raises(PolyclinicError, match=sentence):
        simulate_request({}, {}, SimpleNamespace(node_config=node, run_config=config))  # type: ignore[arg-type]


def test_names_of_sites_are_a_list_or_between_commas() -> None:
    assert site_names("south, north,") == site_names('["south", "north"]') == ["north", "south"]
    assert site_names(None) == []
