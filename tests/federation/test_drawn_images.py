"""What a round draws is told before it trains, and is what the training then takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from polyclinic.core.seeds import generator_for
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.drawn_images import batches_read_ahead, drawn_batches, drawn_rows
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.training import LocalTraining
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe, tiny_site, tiny_task


@pytest.mark.parametrize(
    ("method", "training", "everything"),
    [
        ("fedavg", {"batch_size": 2}, True),
        ("fedavg", {"batch_size": 2, "steps_per_epoch": 2}, False),
        ("fedavg", {"batch_size": 2, "steps_per_epoch": 2, "local_epochs": 40}, True),
        ("fixmatch", {"batch_size": 1, "steps_per_epoch": 1}, False),
    ],
)
def test_what_is_foretold_is_what_the_training_takes(
    method: str, training: dict[str, Any], everything: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny_site("north", 7)
    if method == "fixmatch":
        data.images.labelled[3:] = False
    workspace = build_workspace(tiny_recipe(method, training={"local_epochs": 1, **training}), tiny_task())
    taken: set[int] = set()
    load = LocalTraining._load

    def spy(self: LocalTraining, rows: torch.Tensor, generator: torch.Generator) -> Any:
        taken.update(rows.tolist())
        return load(self, rows, generator)

    monkeypatch.setattr(LocalTraining, "_load", spy)
    for number in (0, 1):
        taken.clear()
        labelled, others = drawn_rows(workspace, data, number)
        Site(data, SiteStore(tmp_path)).train(workspace, Broadcast(number, dict(workspace.initial_exchanged)))
        assert labelled | others == taken
        assert all(data.images.labelled[row] for row in labelled)
        assert not any(data.images.labelled[row] for row in others)
        assert (len(taken) == 7) == everything


@pytest.mark.parametrize("patch", [None, (8, 8)])
def test_images_are_read_ahead_by_two_steps_and_patches_where_they_will_be(
    patch: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny_site("north", 7)
    data.images.labelled[3:] = False
    keys = {
        "training": {"batch_size": 1, "steps_per_epoch": 4},
        "data": {"patch": patch, "foreground": 0.25} if patch else {},
    }
    workspace = build_workspace(tiny_recipe("fixmatch", **keys), tiny_task())
    told: list[tuple[list[int], Any, Any]] = []

    def will_need(
        rows: torch.Tensor, size: Any = None, generator: torch.Generator | None = None, foreground: float = 0.25
    ) -> None:
        assert foreground == 0.25
        told.append((rows.tolist(), size, None if generator is None else generator.initial_seed()))

    monkeypatch.setattr(data.images, "will_need", will_need, raising=False)
    wanted = [(rows.tolist(), others.tolist()) for rows, others in drawn_batches(workspace, data, 3, 1)]
    steps = batches_read_ahead(workspace, data, 3, 1)
    taken = []
    for index in range(4):
        rows, others = next(steps)
        taken.append((rows.tolist(), others.tolist()))
        assert len(told) == min(index + 3, 4)
    assert next(steps, None) is None
    assert taken == wanted
    seeds = [generator_for(workspace.recipe.seed, "north", 3, "step", 1, index).initial_seed() for index in range(4)]
    assert told == [
        ([*rows, *others], None, None) if patch is None else (rows, patch, seed)
        for (rows, others), seed in zip(wanted, seeds, strict=True)
    ]
