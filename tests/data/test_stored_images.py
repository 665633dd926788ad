"""Image sets over entries give images, labels and foreground of the right rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from polyclinic.data import cache_entry, site_layout
from polyclinic.data.build_imageset import build_imageset
from polyclinic.data.federation import Federation
from polyclinic.data.imageset import ImageSet
from polyclinic.data.open_federation import open_federation
from polyclinic.data.stored_images import imageset_of
from polyclinic.recipe import DataSettings


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    """Pictures of three sizes; entries are mapped, and the foreground of all but the smallest label is stored."""
    monkeypatch.setattr(cache_entry, "_SMALL", 0)
    monkeypatch.setattr(site_layout, "_STORED_FROM", 300)
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (tmp_path / "f/a" / folder).mkdir(parents=True)
    for number, size in enumerate((16, 40, 40, 24)):
        PILImage.fromarray(random.integers(0, 255, (size, size), dtype=np.uint8)).save(
            tmp_path / f"f/a/images/{number}.png"
        )
        label = np.zeros((size, size), np.uint8)
        label[size // 2 :, : 5 + number] = 1 + number % 2
        PILImage.fromarray(label).save(tmp_path / f"f/a/labels/{number}.png")
    (tmp_path / "f/federation.toml").write_text('classes = ["background", "x", "y"]')
    return open_federation(tmp_path / "f")


def plain(images: ImageSet) -> ImageSet:
    """The same in memory, without anything that was stored about it."""
    pairs = [images[index] for index in range(len(images))]
    return ImageSet(
        [image.clone() for image, _ in pairs], [label.clone() for _, label in pairs], images.labelled, images.samples
    )


@pytest.mark.parametrize("hidden", [(), (1,), (0, 2)])
def test_patches_are_those_of_images_in_memory(federation: Federation, tmp_path: Path, hidden: tuple[int, ...]) -> None:
    items = [replace(item, label=None) if n in hidden else item for n, item in enumerate(federation.sites["a"])]
    images = build_imageset(items, federation, DataSettings(cache=str(tmp_path / "cache")))
    assert images.labelled.tolist() == [number not in hidden for number in range(4)]
    stored = [images._foreground(index) for index in range(4)]
    assert [image.shape[1] for image in images.images] == [16, 40, 40, 24]
    for whole, part in (
        (images, slice(None)),
        (images.subset(torch.tensor([False, True, True, True])), slice(1, None)),
    ):
        other = plain(whole)
        found = [other._foreground(index) for index in range(len(other))]
        assert [[v.tolist() for v in voxels] for voxels in stored[part]] == [
            [v.tolist() for v in voxels] for voxels in found
        ]
        for seed in range(5):
            indices = torch.arange(len(whole))
            pair = [one.patches(indices, (8, 8), torch.Generator().manual_seed(seed)) for one in (whole, other)]
            assert torch.equal(pair[0][0], pair[1][0])
            assert torch.equal(pair[0][1], pair[1][1])


def test_stored_foreground_needs_no_label(federation: Federation, tmp_path: Path) -> None:
    images = build_imageset(federation.sites["a"], federation, DataSettings(cache=str(tmp_path / "cache")))
    for index in range(4):
        images._foreground(index)
    assert list(images._found) == [0], "only that of the small label was looked for"


def test_nothing_is_an_empty_set() -> None:
    assert len(imageset_of((), None, None)) == 0
