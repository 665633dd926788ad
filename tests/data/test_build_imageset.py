"""Prepared images in memory or from the cache: the same tensors, read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from polyclinic.data import build_imageset as builder
from polyclinic.data.build_imageset import build_imageset, is_cached, prepared_bytes
from polyclinic.data.federation import Federation
from polyclinic.data.imageset import ImageSet, Sample
from polyclinic.data.open_federation import open_federation
from polyclinic.data.preprocessing import prepare
from polyclinic.recipe import DataSettings


def pictures(root: Path, *shapes: tuple[int, int]) -> Federation:
    """One site of random pictures; the last has no label."""
    random = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (root / "a" / folder).mkdir(parents=True)
    for number, shape in enumerate(shapes):
        PILImage.fromarray(random.integers(0, 255, (*shape, 3), dtype=np.uint8)).save(
            root / f"a/images/p{number}_s1.png"
        )
        if number < len(shapes) - 1:
            PILImage.fromarray(random.integers(0, 2, shape, dtype=np.uint8)).save(root / f"a/labels/p{number}_s1.png")
    return open_federation(root)


def volumes(root: Path, *shapes: tuple[int, int, int]) -> Federation:
    random = np.random.default_rng(1)
    for folder in ("images", "labels"):
        (root / "a" / folder).mkdir(parents=True)
    affine = np.diag([-1.0, 2.0, 3.0, 1.0])
    for number, shape in enumerate(shapes):
        image = nibabel.Nifti1Image(random.normal(size=shape).astype(np.float32), affine)
        label = nibabel.Nifti1Image(random.integers(0, 2, shape, dtype=np.uint8), affine)
        nibabel.save(image, root / f"a/images/v{number}.nii.gz")
        nibabel.save(label, root / f"a/labels/v{number}.nii.gz")
    (root / "federation.toml").write_text("spatial_dims = 2")
    return open_federation(root)


def built(federation: Federation, cache: Path, always: bool = False, **keys: Any) -> ImageSet:
    return build_imageset(federation.sites["a"], federation, DataSettings(**keys), cache, always)


def expected(federation: Federation, **keys: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = [one for item in federation.sites["a"] for one in prepare(item, federation, DataSettings(**keys))]
    return [
        (one.image, torch.zeros(one.image.shape[1:], dtype=torch.uint8) if one.label is None else one.label)
        for one in made
    ]


def same(images: ImageSet, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return len(images) == len(pairs) and all(
        torch.equal(images[index][0], image) and torch.equal(images[index][1], label)
        for index, (image, label) in enumerate(pairs)
    )


@pytest.mark.parametrize("always", [False, True])
def test_pictures_of_one_size_are_one_tensor(tmp_path: Path, always: bool) -> None:
    federation = pictures(tmp_path / "f", (9, 7), (8, 8), (20, 4))
    images = built(federation, tmp_path / "cache", always, size=(8, 6))
    assert images.uniform
    assert isinstance(images.images, torch.Tensor)
    assert images.images.shape == (3, 3, 8, 6)
    assert same(images, expected(federation, size=(8, 6)))
    assert images.labelled.tolist() == [True, True, False]
    assert images.samples[0] == Sample("a", "p0_s1", "p0", None, None, None)
    pixels, labels = images.batch(torch.tensor([2, 0]))
    assert pixels.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert torch.equal(pixels, images.images[[2, 0]])
    assert torch.equal(labels[1], images[0][1].long())
    assert (tmp_path / "cache").exists() == always


@pytest.mark.parametrize("always", [False, True])
def test_pictures_of_different_sizes_are_a_list(tmp_path: Path, always: bool) -> None:
    federation = pictures(tmp_path / "f", (9, 7), (8, 8), (8, 8))
    images = built(federation, tmp_path / "cache", always)
    assert not images.uniform
    assert same(images, expected(federation))
    assert [image.shape[1:] for image in images.images] == [(9, 7), (8, 8), (8, 8)]
    assert images.batch(torch.tensor([2, 1]))[0].shape == (2, 3, 8, 8)
    with pytest.raises(RuntimeError, match="equal size"):
        images.batch(torch.tensor([0, 1]))


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("keys", [{"size": (6, 4)}, {}, {"spacing": (1.0, 1.0, 2.0)}])
def test_volumes_become_slices(tmp_path: Path, always: bool, keys: dict[str, Any]) -> None:
    federation = volumes(tmp_path / "f", (8, 6, 3), (8, 6, 5))
    images = built(federation, tmp_path / "cache", always, **keys)
    assert images.uniform
    assert same(images, expected(federation, **keys))
    if not keys:
        assert [sample.slice_index for sample in images.samples] == [0, 1, 2, 0, 1, 2, 3, 4]
        assert images.samples[3] == Sample("a", "v1", "v1", 0, (1.0, 2.0), 3.0)


def test_a_site_above_the_limit_is_mapped_and_reused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = pictures(tmp_path / "f", (9, 7), (8, 8), (20, 4))
    small = 3 * 8 * 6 * (3 * 4 + 1) / 10**6
    built(federation, tmp_path / "cache", size=(8, 6), memory_limit_mb=small)
    assert not (tmp_path / "cache").exists()
    first = built(federation, tmp_path / "cache", size=(8, 6), memory_limit_mb=small * 0.99)
    assert len(list((tmp_path / "cache").iterdir())) == 1

    def unread(*_: object) -> None:
        raise AssertionError("an image was read")

    monkeypatch.setattr(builder, "prepare", unread)
    monkeypatch.setattr(builder, "geometry_of", unread)
    again = built(federation, tmp_path / "cache", size=(8, 6), memory_limit_mb=small * 0.99)
    assert same(again, [first[index] for index in range(3)])
    assert again.samples == first.samples
    assert again.labelled.tolist() == first.labelled.tolist()
    with pytest.raises(AssertionError, match="an image was read"):
        built(federation, tmp_path / "cache", always=True, size=(8, 8))


def test_slices_in_the_cache_are_reused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = volumes(tmp_path / "f", (8, 6, 3), (4, 6, 5))
    first = built(federation, tmp_path / "cache", always=True)
    monkeypatch.setattr(builder, "prepare", None)
    monkeypatch.setattr(builder, "geometry_of", None)
    again = built(federation, tmp_path / "cache", always=True)
    assert same(again, [first[index] for index in range(8)])
    assert again.samples == first.samples


def test_no_image_makes_an_empty_set(tmp_path: Path) -> None:
    federation = pictures(tmp_path / "f", (8, 8), (8, 8))
    empty = build_imageset((), federation, DataSettings(), tmp_path, always=True)
    assert len(empty) == 0
    assert len(empty.labelled) == 0


def test_the_size_of_prepared_images_is_known_before_one_is_read(tiny_federation: Path, tmp_path: Path) -> None:
    federation = open_federation(tiny_federation)
    items = federation.sites["north"]
    for settings in (DataSettings(size=(32, 24)), DataSettings()):
        images = build_imageset(items, federation, settings)
        pairs = [images.batch(torch.tensor([row])) for row in range(5)]
        total = sum(image.numel() * 4 + label.numel() for image, label in pairs)
        assert prepared_bytes(items, federation, settings) == (total, total // 5)
        assert not is_cached(tmp_path, items, federation, settings)
        build_imageset(items, federation, settings, tmp_path, always=True)
        assert is_cached(tmp_path, items, federation, settings)
    assert prepared_bytes((), federation, DataSettings()) == (0, 0)
