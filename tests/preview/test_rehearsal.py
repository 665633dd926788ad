"""A rehearsal on noise: its data, its sites and its counter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from polyclinic.core.errors import PolyclinicError
from polyclinic.preview.rehearsal import Rehearsal, StrictObserver, flop_counter, noise
from support import tiny_recipe, tiny_task


def test_attention_on_a_cpu_is_counted() -> None:
    """torch's own table holds the kernels of GPUs alone, and counts 0 here."""
    query = torch.rand(2, 3, 16, 8, requires_grad=True)
    product = 2 * (2 * 3) * 16 * 16 * 8  # queries with keys, weights with values
    with flop_counter() as counter, torch.no_grad():
        F.scaled_dot_product_attention(query, query, query)
    assert counter.get_total_flops() == 2 * product
    with flop_counter() as counter:
        F.scaled_dot_product_attention(query, query, query).sum().backward()
    # Backward has four products, and a fifth where the kernel makes the attention weights again.
    assert counter.get_total_flops() in (6 * product, 7 * product)


@pytest.mark.parametrize("mixed", [False, True])
def test_noise_has_every_class_and_as_many_unlabelled_images_where_they_are_wanted(mixed: bool) -> None:
    task, total = tiny_task(3), 8 if mixed else 4
    data, again, other = (noise(site, 4, mixed, task, (8, 6, 4)) for site in ("north", "north", "south"))
    everything = torch.arange(total)
    images, labels = data.images.batch(everything)
    assert images.shape == (total, task.channels, 8, 6, 4)
    assert data.images.labelled.tolist() == [True] * 4 + [False] * (total - 4)
    assert set(labels.unique().tolist()) == set(range(len(task.classes)))
    assert [len(data.splits[split]) for split in ("train", "val", "test")] == [total, 0, 0]
    assert torch.equal(again.images.batch(everything)[0], images)
    assert not torch.equal(other.images.batch(everything)[0], images)


def test_the_second_round_is_counted_and_a_third_leaves_no_trace() -> None:
    rehearsal = Rehearsal(tiny_recipe(), tiny_task(), ["south", "north"], (8, 8))
    counted, event = rehearsal.count(), rehearsal.observer.event
    assert rehearsal.server.sites == ("north", "south")
    assert (event["round"], event["samples"]) == (1, {"north": 2, "south": 1})
    assert counted.training > counted.inference > 0
    assert (counted.site_besides_steps, counted.server) == (0, 0)
    state = rehearsal.sites[0].store.load(0)
    site = rehearsal.train_once_more(state, {})
    assert (site.seconds > 0, site.seen) == (True, 2)
    assert rehearsal.sites[0].store.load(0).round == state.round == 1


def test_pooled_data_has_one_site() -> None:
    rehearsal = Rehearsal(tiny_recipe("central"), tiny_task(), ["south", "north"], (8, 8))
    rehearsal.count()
    assert rehearsal.server.sites == ("north",)


def test_a_patch_is_the_image() -> None:
    patches = tiny_recipe("fedavg", data={"patch": [8, 8]})
    whole, cut = (Rehearsal(recipe, tiny_task(), ["north"], (8, 8)).count() for recipe in (tiny_recipe(), patches))
    assert whole == cut


@pytest.mark.parametrize("labelled", [None, True, False])
def test_noise_knows_its_labels_without_a_look(labelled: bool | None) -> None:
    data = noise("north", 3, True, tiny_task(), (8, 8))
    wanted = [i for i, has in enumerate(data.images.labelled.tolist()) if labelled is None or has == labelled]
    assert data.training_indices(labelled).tolist() == wanted


def test_a_refusal_stops_the_rehearsal_with_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"^moon: cost unknown, north failed: no; mend that or leave the method"):
        StrictObserver("moon").on_refusal(0, "north", "failed: no", "trace")


def test_gradients_inside_of_a_loss_are_counted() -> None:
    """As FedMix has them: the counter's notes on modules would stop here."""
    layer = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3))
    images = torch.rand(1, 1, 5, 5, requires_grad=True)
    with flop_counter() as counter:
        loss = layer(images).square().sum()
        (slope,) = torch.autograd.grad(loss, images, create_graph=True)
        (loss + slope.sum()).backward()
    assert counter.get_total_flops() > 3 * 2 * 9 * 9, "a pass forward, one back to the images, and the way back of both"
