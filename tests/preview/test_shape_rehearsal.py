"""Counts by shape against a real rehearsal of the same size, for every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from polyclinic.components.base import Component
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.methods.registry import methods
from polyclinic.preview import shape_rehearsal
from polyclinic.preview.rehearsal import Rehearsal
from polyclinic.preview.shape_rehearsal import bare_step_flops, count_by_shape, count_flops, small_size
from polyclinic.recipe import Recipe
from support import tiny_recipe, tiny_task

SIZE = (24, 28)
# How many clusters there are is chance; so are the FLOPs of making them, at a site or at the server.
CLUSTERING = {"fedbcs", "fedcontrast", "fedplvm", "fpl"}

DRAWING = {"augseg"}  # what is done to an image is drawn, and blurring is a convolution


def recipe_for(method: str) -> Recipe:
    """Few tensors: fake ones cost time by number, not by size."""
    return tiny_recipe(method, training={"batch_size": 3, "optimizer": "sgd"}, network={"norm": "instance"})


@pytest.mark.parametrize("method", methods())
def test_every_method_is_counted_by_shape_as_it_is_counted_for_real(method: str) -> None:
    recipe, task = recipe_for(method), tiny_task()
    count = count_by_shape(recipe, task, ["north"], SIZE)
    real = Rehearsal(recipe, task, ["north"], SIZE)
    expected = real.count()
    assert count.scaled is None
    assert count.flops.inference == expected.inference
    assert count.flops.training == pytest.approx(expected.training, rel=0.02 if method in DRAWING else 0)
    if method in DRAWING:
        return
    if method in CLUSTERING:
        assert count.by_value
    else:
        assert count.flops == expected
    assert count.rehearsal.sites[0].seen == real.sites[0].seen
    assert count.rehearsal.observer.event["bytes_up"].keys() == real.observer.event["bytes_up"].keys()
    if not count.by_value:
        assert count.rehearsal.observer.event["bytes_up"] == real.observer.event["bytes_up"]
        assert count.rehearsal.observer.event["shared_up"] == real.observer.event["shared_up"]


@pytest.mark.parametrize("method", ["moon", "harmofl", "fedproto"])
def test_a_step_gets_its_numbers_back(method: str) -> None:
    """Previous models, prototypes, and buffers that are as large as an image."""
    recipe, task = recipe_for(method), tiny_task()
    step = count_by_shape(recipe, task, ["north", "south"], SIZE).open_step(recipe, task)
    assert step.rehearsal.size == SIZE
    assert type(next(step.rehearsal.workspace.network.parameters()).data) is Tensor
    assert step.seconds() > 0


def test_kept_bytes_grow_with_the_image() -> None:
    recipe, task = recipe_for("fedavg"), tiny_task()
    small, large = (count_by_shape(recipe, task, ["north"], (side, 24)).rehearsal.sites[0].kept for side in (24, 48))
    assert small < large < 2.1 * small


def test_a_volume_that_no_memory_would_hold() -> None:
    recipe, task = recipe_for("fedavg"), tiny_task(3)
    count = count_by_shape(recipe, task, ["north"], (4096, 4096, 4096))
    small = Rehearsal(recipe, task, ["north"], (8, 8, 8)).count()
    assert count.flops.training == small.training * 512**3
    assert count.rehearsal.sites[0].kept > 10**12


def test_small_images_are_rehearsed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, task = recipe_for("fedavg"), tiny_task()
    network = Rehearsal(recipe, task, ["north"], SIZE).workspace.network
    step = bare_step_flops(network, SIZE, 3)
    assert count_flops(recipe, task, ["north"], SIZE, step).lender is None
    monkeypatch.setattr(shape_rehearsal, "DIRECT", step - 1)
    sites = [f"site{number:02d}" for number in range(20)]
    monkeypatch.setattr(shape_rehearsal, "MOST_SITES", 2)
    count = count_flops(recipe, task, sites, SIZE, step)
    assert count.lender is not None
    assert count.lender.size == (8, 8)
    assert count.rehearsal.names == ["site00", "site01"]


def test_small_sizes() -> None:
    assert small_size((256, 256, 115), (16, 16, 16)) == (32, 32, 32)
    assert small_size((20, 512), (16, 8)) == (20, 16)


def test_what_shapes_cannot_tell_is_scaled_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyclinic.components import registry

    registry.components()
    monkeypatch.setattr(registry, "_COMPONENTS", dict(registry._COMPONENTS))

    @component
    class _Peeking(Component):
        name = "peeking"
        level = "objective"

        def loss(self, step: Step) -> dict[str, Tensor]:
            for _ in range(step.images.shape[-1]):  # reads more values from a larger image
                float(step.images.sum())
            return {}

    recipe, task = recipe_for("fedavg+peeking"), tiny_task()
    count = count_by_shape(recipe, task, ["north"], SIZE)
    assert count.scaled is not None
    assert "UnreadableValueError" in count.scaled
    assert count.flops == Rehearsal(recipe_for("fedavg"), task, ["north"], SIZE).count()


def test_a_network_that_looks_at_values_has_no_bare_count() -> None:
    class Looking(torch.nn.Module):
        channels, multiples = 1, (1, 1)

        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, images: Any) -> Any:
            return images if images.sum() > 0 else -images

    assert bare_step_flops(Looking(), SIZE, 1) == float("inf")  # type: ignore[arg-type]
