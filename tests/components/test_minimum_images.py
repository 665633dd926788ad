"""Where a site's policy asks for several images, no number that a component shares rests on fewer cases."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyclinic.components.objectives.local_clusters import LocalClusters
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Broadcast, Update
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe, tiny_site, tiny_task

COUNT = 6
NETWORK = {"norm": "instance"}
ONE_IMAGE_LAST = {"batch_size": 1, "steps_per_epoch": 1, "local_epochs": 4}


def update_of(method: str, folder: Path, minimum: int, **sections: Any) -> Update:
    """What a site of six cases would send in the first round."""
    training = {"batch_size": 1, "local_epochs": 1, **sections.pop("training", {})}
    recipe = tiny_recipe(method, network=NETWORK, training=training, data={"size": [8, 8]}, **sections)
    workspace = build_workspace(recipe, tiny_task())
    site = Site(tiny_site("north", COUNT), SiteStore(folder / str(minimum)), minimum)
    return site.train(workspace, Broadcast(0, workspace.initial_exchanged))


def spectra() -> Tensor:
    images, _ = tiny_site("north", COUNT).images.batch(torch.arange(COUNT))
    return torch.fft.rfftn(images, dim=(2, 3), norm="forward").abs()


@pytest.mark.parametrize("momentum", [0, 0.1, 1])
def test_a_shared_amplitude_is_the_mean_of_all_images(momentum: float, tmp_path: Path) -> None:
    method = f"fedavg+amplitude_normalisation(window=1,momentum={momentum})"
    update = update_of(method, tmp_path, 3)
    (shared,) = update.shared["amplitude_normalisation"]["amplitude"]
    torch.testing.assert_close(shared, spectra().mean(0))
    assert torch.equal(update.weights["taps.input.amplitude_normalisation.amplitude"], shared)


def test_without_a_policy_an_amplitude_is_that_of_the_equation(tmp_path: Path) -> None:
    update = update_of("fedavg+amplitude_normalisation(window=1,momentum=0)", tmp_path, 1)
    (shared,) = update.shared["amplitude_normalisation"]["amplitude"]
    assert sum(torch.allclose(shared, one, atol=1e-6) for one in spectra()) == 1  # the first batch is one image


def test_an_amplitude_of_too_few_images_is_forgotten_in_the_weights_too(tmp_path: Path) -> None:
    method = "fedavg+amplitude_normalisation(window=1,momentum=0)"
    update = update_of(method, tmp_path, 3, training={"steps_per_epoch": 2})
    shared = update.shared["amplitude_normalisation"]
    assert not shared["amplitude"].any()
    assert not shared["count"].any()
    assert not update.weights["taps.input.amplitude_normalisation.amplitude"].any()
    assert (
        update_of(method, tmp_path, 2, training={"steps_per_epoch": 2})
        .shared["amplitude_normalisation"]["amplitude"]
        .any()
    )


def smallest_group(row: Tensor, samples: Tensor) -> int:
    """The smallest number of samples whose mean a row is."""
    for size in range(1, len(samples) + 1):
        for group in combinations(range(len(samples)), size):
            if torch.allclose(samples[list(group)].mean(0), row, atol=1e-6):
                return size
    raise AssertionError("a prototype is no mean of samples")


@pytest.mark.parametrize("partition", ["first", "last"])
def test_clusters_of_few_cases_are_merged(partition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Tensor, ...]] = []
    original = LocalClusters._samples

    def spy(self: LocalClusters, site: Any) -> Any:
        found.append(original(self, site))
        return found[-1]

    monkeypatch.setattr(LocalClusters, "_samples", spy)
    sizes = {}
    for minimum in (1, 4):
        shared = update_of(f"fedplvm(partition={partition})", tmp_path, minimum).shared["local_clusters"]
        samples, owners = found[-1][:2]
        sizes[minimum] = [
            smallest_group(row, samples[owners == label])
            for row, label in zip(shared["prototypes"], shared["classes"], strict=True)
        ]
    assert min(sizes[1]) < 4  # as without a policy, it would leave
    assert sizes[4]
    assert min(sizes[4]) >= 4


def test_pixels_of_one_image_do_not_leave_as_prototypes(tmp_path: Path) -> None:
    def rows(minimum: int, samples: int) -> Tensor:
        method = f"fedavg+prototype_contrast(samples={samples},channels=4)"
        shared = update_of(method, tmp_path / str(samples), minimum).shared["prototype_contrast"]
        return torch.bincount(shared["classes"], minlength=3)

    assert rows(1, samples=1).tolist() == [1, 1, 1]
    assert rows(3, samples=1).tolist() == [0, 0, 0]
    assert rows(1, samples=200).tolist() == [1, 8, 8]
    few = rows(5, samples=200)
    assert few[0] == 1
    assert 0 < few.sum() <= 17


@pytest.mark.parametrize("method", ["fedproto", "fpl", "fedbcs"])
def test_class_means_of_a_last_epoch_with_few_cases_are_left_out(method: str, tmp_path: Path) -> None:
    for minimum, leaves in ((1, True), (2, False)):
        update = update_of(method, tmp_path, minimum, training=ONE_IMAGE_LAST)
        (tensors,) = update.shared.values()
        assert all(bool(tensor.any()) == leaves for tensor in tensors.values())
    (tensors,) = update_of(method, tmp_path / "all", 3).shared.values()
    assert all(tensor.any() for tensor in tensors.values())


@pytest.mark.parametrize("name", ["afa", "cse"])
def test_statistics_of_a_last_epoch_with_few_cases_do_not_leave(name: str, tmp_path: Path) -> None:
    assert update_of(f"fedavg+{name}", tmp_path, 1, training=ONE_IMAGE_LAST).shared[name]["mean"].any()
    with pytest.raises(PolyclinicError, match=f"refused: what {name} shares would rest on 1 case, .* asks for 2"):
        update_of(f"fedavg+{name}", tmp_path, 2, training=ONE_IMAGE_LAST)


def test_running_statistics_of_few_images_stay_as_they_were_received(tmp_path: Path) -> None:
    """With momentum 0 and batches of one, those of the last image alone would leave."""
    method, few = "fedavg+feature_augmentation(momentum=0,probability=1)", {"steps_per_epoch": 2}
    for minimum, changes in ((1, True), (2, True), (3, False)):
        update = update_of(method, tmp_path, minimum, training=few)
        buffer = next(t for n, t in update.weights.items() if n.endswith("feature_augmentation.mean"))
        assert bool(update.shared["feature_augmentation"]["mean"].any()) == changes
        assert bool(buffer.any()) == changes
