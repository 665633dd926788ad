"""What a round computes: foretold from one image, and counted in a real round."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.data.open_federation import open_federation
from polyclinic.evaluation.protocols import protocol_parts
from polyclinic.preview.rehearsal import flop_counter
from polyclinic.preview.round_flops import SiteImages, images_in_steps, round_flops, training_images
from polyclinic.preview.shape_rehearsal import count_flops
from polyclinic.recipe import Recipe, TrainingSettings
from polyclinic.recipe.files import make_recipe
from support import SIZES, tiny_recipe, tiny_server, tiny_task

LATE = {"training": {"rounds": 9, "validate_every": 9, "local_epochs": 2, "batch_size": 2, "lr": 0.01}}


@pytest.mark.parametrize("method", ["fedavg", "pathfl", "central", "fedprox"])
def test_the_second_round_of_a_real_server_computes_what_was_foretold(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, **LATE)
    count = count_flops(recipe, tiny_task(), list(SIZES), (8, 8), 0)
    foretold = round_flops(count, recipe, {name: SiteImages(number, 0) for name, number in SIZES.items()})
    server = tiny_server(tmp_path, recipe)
    server.round()
    counter = flop_counter()
    with counter:
        server.round()
    assert foretold["total"] == pytest.approx(counter.get_total_flops(), rel=1e-6)
    assert foretold["server"] == count.flops.server
    assert (foretold["server"] > 0) == (method == "pathfl")


def test_fewer_sites_take_part() -> None:
    recipe = tiny_recipe(training={"participation": 2})
    count = count_flops(recipe, tiny_task(), list(SIZES), (8, 8), 0)
    all_sites = dict.fromkeys(SIZES, SiteImages(4, 0))
    half = round_flops(count, recipe, all_sites)["steps"]
    whole = round_flops(count, tiny_recipe(), all_sites)["steps"]
    assert half == pytest.approx(whole * 2 / 3)


def test_images_that_steps_see() -> None:
    training = TrainingSettings(local_epochs=3, batch_size=4)
    assert images_in_steps(SiteImages(10, 0), training) == 30
    assert images_in_steps(SiteImages(10, 20), training) == 3 * (30 // 8 + 1) * 8
    assert images_in_steps(SiteImages(3, 20), training) == 3 * (23 // 8 + 1) * 7
    given = TrainingSettings(local_epochs=3, batch_size=4, steps_per_epoch=5)
    assert images_in_steps(SiteImages(10, 0), given) == 3 * 5 * 4
    assert images_in_steps(SiteImages(0, 0), given) == 0


def _counts(**sections: object) -> tuple[dict[str, SiteImages], Recipe]:
    recipe = make_recipe({"federation": "demo:cardiac", "protocol": {"kind": "leave-one-site-out"}, **sections})
    federation = open_federation(recipe.federation, recipe.data)
    return training_images(federation, recipe, protocol_parts(federation, recipe)[0]), recipe


def test_slices_of_the_sites_that_train_and_a_budget_of_labels() -> None:
    every, _ = _counts()
    assert len(every) == 3, "one of four is left out"
    assert all(images.labelled > 8 and not images.unlabelled for images in every.values())
    few, _ = _counts(data={"labelled": 7})
    assert [images.labelled for images in few.values()] == [7, 7, 7]
    assert [sum(images) for images in few.values()] == [sum(images) for images in every.values()]
