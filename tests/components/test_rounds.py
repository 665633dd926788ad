"""What a component sees of a round: frozen copies at a site, and the server's names of trained weights."""

from __future__ import annotations

import pytest
import torch

from mixed_sites import mixed_site, shake, site_round
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.federation.workspace import build_workspace
from support import assert_same, tiny_recipe, tiny_task


@pytest.fixture
def site() -> SiteRound:
    return site_round(build_workspace(tiny_recipe(), tiny_task()), mixed_site("north", 3, 4))


def test_a_frozen_copy_has_the_received_weights_and_no_gradients(site: SiteRound) -> None:
    shake(site.network, 1)
    site.network.train()
    twin = site.frozen()
    assert_same(dict(twin.state_dict()), dict(site.received))
    assert not twin.training
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert site.network.training
    other = {name: tensor + 1 for name, tensor in site.received.items()}
    assert_same(dict(site.frozen(other).state_dict()), other)


def test_batches_walk_over_the_images_with_and_without_labels(site: SiteRound) -> None:
    for labelled, count in ((None, 7), (True, 3), (False, 4)):
        rows = torch.cat([indices for indices, _, _ in site.batches(labelled)])
        assert rows.tolist() == site.data.training_indices(labelled).tolist()
        assert len(rows) == count
    sizes = [len(images) for _, images, _ in site.batches()]
    assert sizes == [3, 3, 1]


def test_the_mean_learning_rate_is_that_of_the_steps(site: SiteRound) -> None:
    assert site.mean_lr == 0
    site.steps, site.learning_rates = 4, 1.0
    assert site.mean_lr == 0.25


def test_trained_weights_are_floating_point_no_buffers_and_sorted() -> None:
    previous = {"b": torch.ones(1), "a": torch.ones(1), "mean": torch.ones(1), "count": torch.tensor(1)}
    network = build_workspace(tiny_recipe(), tiny_task()).network
    server = ServerRound(
        0, 1, network, previous, (), frozenset({"mean"}), "average", torch.Generator(), torch.device("cpu")
    )
    assert server.parameters == ["a", "b"]
