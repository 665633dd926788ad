"""Features of test images against loops over their pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import polyclinic
from gallery_support import MORE_TESTS
from polyclinic.runs.feature_samples import Place, features_at, samples_of_sites
from polyclinic.runs.tested_data import open_tested_data
from polyclinic.runs.tested_models import TestedModels
from support import write_tiny_recipe, write_volumes

Finished = Callable[..., Path]


def test_samples_are_the_labelled_test_images(finished: Finished) -> None:
    models = TestedModels.of(finished("fedavg", MORE_TESTS))
    data = open_tested_data(models)
    part = data.parts["all"]
    samples = samples_of_sites(data, part, (4, 4))
    assert {site: len(pairs) for site, pairs in samples.items()} == {"north": 3, "south": 2}
    assert {(tuple(image.shape), tuple(label.shape)) for own in samples.values() for image, label in own} == {
        ((1, 16, 16), (16, 16))
    }
    tested = {row["image"] for row in models.rows("all") if row["site"] == "north"}
    assert tested == {item.name for item in part.split.items(data.federation, "north", "test")}


def test_an_unseen_site_shows_all_of_its_images(finished: Finished) -> None:
    data = open_tested_data(TestedModels.of(finished("fedavg", "protocol.kind=leave-one-site-out")))
    samples = samples_of_sites(data, data.parts["without-north"], (4, 4))
    assert {site: len(pairs) for site, pairs in samples.items()} == {"north": 5, "south": 1}


@pytest.mark.parametrize(
    ("dims", "overrides", "shape"),
    [(2, (), (8, 12)), (3, (), (8, 12, 12)), (3, ("data.patch=[8,8,8]", "data.size=auto"), (8, 8, 8))],
    ids=["the fullest slice", "volumes", "a patch on foreground"],
)
def test_samples_of_volumes(tmp_path: Path, dims: int, overrides: tuple[str, ...], shape: tuple[int, ...]) -> None:
    federation = write_volumes(tmp_path / "f", np.eye(4), dims, shape=(8, 12, 12))
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    run = polyclinic.run(recipe, out=tmp_path / "run", overrides=overrides).folder
    data = open_tested_data(TestedModels.of(run))
    samples = samples_of_sites(data, data.parts["all"], (4,) * dims)
    ((image, label),) = samples["a"]
    assert (tuple(image.shape), tuple(label.shape)) == ((1, *shape), shape)
    if dims == 2:
        assert int(label.count_nonzero()) == 25  # the middle of a ball of radius 3: 29 pixels, cut at the edge
    assert label.any()
    smaller = samples_of_sites(data, data.parts["all"], (5,) * dims)["a"][0]
    assert tuple(smaller[1].shape) == tuple(size // 5 * 5 for size in shape)


def test_features_are_means_and_deviations_over_space_and_means_of_classes(finished: Finished) -> None:
    models = TestedModels.of(finished("harmofl", MORE_TESTS))
    data = open_tested_data(models)
    part = data.parts["all"]
    network = models.workspace.network
    (aligned,) = (one for c in models.workspace.components for one in c.aligns(network))
    assert aligned.module is not None
    places = {
        "in": Place(aligned.module, True, False),
        "out": Place(aligned.module, False, False),
        "classes": Place(network.taps["decoder0"], False, True),
    }
    samples = samples_of_sites(data, part, network.multiples)
    found = features_at(models, part, samples, places)
    amplitude = float(aligned.module.amplitude)  # type: ignore[arg-type]
    place = 0
    for site, pairs in samples.items():
        models.load(part, site)
        for image, label in pairs:
            assert found["in"].sites[place] == site
            pixels = image.flatten().tolist()
            mean = sum(pixels) / len(pixels)
            deviation = (sum((pixel - mean) ** 2 for pixel in pixels) / len(pixels)) ** 0.5
            assert found["in"].vectors[place].tolist() == pytest.approx([mean, deviation], rel=1e-5)
            # The module moves every image to one mean: HarmoFL's equation 3 at frequency 0.
            assert found["out"].vectors[place].tolist() == pytest.approx([amplitude, deviation], rel=1e-4)
            network.eval()
            with torch.no_grad():
                maps = network.features(image[None]).decoder[-1][0]
            disc = [maps[:, y, x] for y in range(16) for x in range(16) if label[y, x] == 1]
            assert torch.allclose(found["classes"].vectors[place].float(), torch.stack(disc).mean(0), atol=1e-5)
            place += 1
    assert found["classes"].classes == ["disc"] * place
    assert found["in"].classes == [None] * place
    assert not aligned.module._forward_hooks


def test_every_site_is_seen_with_its_own_model(finished: Finished) -> None:
    models = TestedModels.of(finished("fedbn", MORE_TESTS))
    data = open_tested_data(models)
    part, tap = data.parts["all"], models.workspace.network.taps["bottleneck"]
    image = torch.rand(1, 16, 16, generator=torch.Generator().manual_seed(0))
    same = {site: [(image, torch.zeros(16, 16))] for site in ("north", "south")}
    north, south = features_at(models, part, same, {"x": Place(tap, False, False)})["x"].vectors
    assert not torch.allclose(north, south)
    north, south = features_at(models, part, same, {"x": Place(tap, False, False)}, initial=True)["x"].vectors
    assert torch.equal(north, south)
    assert features_at(models, part, same, {"x": Place(tap, False, True)})["x"].sites == []  # no class in any image
