"""A rehearsal on noise: its data, its sites and its counter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from polyclinic.core.errors import PolyclinicError
from polyclinic.preview.rehearsal import StrictObserver, flop_counter, noise, rehearse
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


def test_the_second_round_is_counted_and_a_timed_one_leaves_no_trace(tmp_path: Path) -> None:
    rehearsal = rehearse(tiny_recipe(), tiny_task(), ["south", "north"], (8, 8), tmp_path)
    assert rehearsal.server.sites == ("north", "south")
    assert (rehearsal.event["round"], rehearsal.event["samples"]) == (1, {"north": 2, "south": 1})
    assert rehearsal.training > 0
    assert (rehearsal.site_besides_steps, rehearsal.in_server) == (0, 0)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    assert rehearsal.seconds() > 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == files


def test_pooled_data_has_one_site(tmp_path: Path) -> None:
    rehearsal = rehearse(tiny_recipe("central"), tiny_task(), ["south", "north"], (8, 8), tmp_path)
    assert rehearsal.server.sites == ("north",)


def test_a_refusal_stops_the_rehearsal_with_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"^moon: cost unknown, north failed: no; mend that or leave the method"):
        StrictObserver("moon").on_refusal(0, "north", "failed: no", "trace")
