"""A site's round: what it sends, what it stores, and what it starts from when a round is repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Broadcast, Tensors
from polyclinic.federation.site import Site, plain, require_labels
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import build_workspace
from support import assert_same, tiny_recipe, tiny_site, tiny_task

FAST = {"local_epochs": 1}


def test_a_repeated_round_gives_the_same_update_though_its_state_was_saved(tmp_path: Path) -> None:
    workspace = build_workspace(tiny_recipe("fedbn+model_contrast", training=FAST), tiny_task())
    site = Site(tiny_site("north", 3), SiteStore(tmp_path))
    weights: Tensors = dict(workspace.initial_exchanged)
    weights = site.train(workspace, Broadcast(0, weights)).weights
    first = site.train(workspace, Broadcast(1, weights))
    again = Site(tiny_site("north", 3), SiteStore(tmp_path)).train(workspace, Broadcast(1, weights))
    assert_same(first.weights, again.weights)
    assert (first.samples, first.steps, first.losses) == (3, 2, again.losses)
    assert first.weights.keys() == workspace.exchanged


def test_the_state_is_written_when_it_is_submitted(tmp_path: Path) -> None:
    workspace = build_workspace(tiny_recipe(training=FAST), tiny_task())
    site = Site(tiny_site("north", 2), SiteStore(tmp_path))
    submitted: list[Callable[[], None]] = []
    site.train(workspace, Broadcast(0, dict(workspace.initial_exchanged)), submitted.append)
    assert list(tmp_path.iterdir()) == []
    submitted[0]()
    assert [path.name for path in tmp_path.iterdir()] == ["round-00000.safetensors"]


@pytest.mark.parametrize(
    "sections",
    [{"training": {"optimizer": "sgd", "momentum": 0.0}}, {"policies": {"optimizer_state": "reset"}}],
)
def test_a_site_that_has_nothing_to_remember_writes_nothing(sections: dict[str, Any], tmp_path: Path) -> None:
    sections["training"] = {**FAST, **sections.get("training", {})}
    workspace = build_workspace(tiny_recipe(**sections), tiny_task())
    site = Site(tiny_site("north", 2), SiteStore(tmp_path))
    site.train(workspace, Broadcast(0, dict(workspace.initial_exchanged)))
    assert not list(tmp_path.iterdir())


def test_a_site_scores_the_model_that_it_would_use(tmp_path: Path) -> None:
    workspace = build_workspace(tiny_recipe("fedbn", training=FAST), tiny_task())
    site = Site(tiny_site("north", 3), SiteStore(tmp_path))
    broadcast = Broadcast(0, dict(workspace.initial_exchanged))
    site.train(workspace, broadcast)
    quick = site.evaluate(workspace, broadcast, "val", detailed=False)
    assert_same(dict(workspace.network.state_dict()), site.model(workspace, broadcast))
    assert (quick.site, quick.images, quick.rows) == ("north", 1, [])
    assert {row["image"] for row in site.evaluate(workspace, broadcast, "test", detailed=True).rows} == {"north-4"}


def test_plain_tensors_are_detached_copies() -> None:
    weight = torch.ones(2, 2, requires_grad=True)
    copy = plain({"w": weight.t()})["w"]
    assert (copy.requires_grad, copy.is_contiguous()) == (False, True)
    assert copy.untyped_storage().nbytes() == 16
    row = plain({"row": weight[0]})["row"]
    assert row.untyped_storage().nbytes() == 8, "the storage of the whole is not dragged along"
    with torch.no_grad():
        weight += 1
    assert copy.tolist() == [[1, 1], [1, 1]]


def test_a_site_without_labels_gets_a_sentence() -> None:
    require_labels(tiny_site("north", 2))
    with pytest.raises(PolyclinicError, match="Site 'north' has no labelled training image and this method needs one"):
        require_labels(tiny_site("north", 2, labelled=False))
