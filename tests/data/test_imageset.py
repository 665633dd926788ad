from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage

from polyclinic.data import build_imageset as builder
from polyclinic.data.build_imageset import build_imageset
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
    small = 3 * 8 * 6 * (3 * 4 + 1) / 2**20
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


def squares(*shapes: tuple[int, ...]) -> ImageSet:
    """Images that hold their own flat position plus one, with one foreground voxel in the far corner."""
    images = [torch.arange(1.0, 1 + int(np.prod(shape))).view(1, *shape) for shape in shapes]
    labels = [torch.zeros(shape, dtype=torch.uint8) for shape in shapes]
    for label in labels:
        label[tuple(-1 for _ in label.shape)] = 1
    samples = [Sample("a", f"{index}", f"{index}", None, None, None) for index in range(len(shapes))]
    return ImageSet(images, labels, torch.ones(len(shapes), dtype=torch.bool), samples)


def test_a_subset_counts_from_zero_and_copies_nothing() -> None:
    whole = squares((4, 4), (5, 5), (6, 6), (7, 7))
    part = whole.subset(torch.tensor([False, True, False, True]))
    assert len(part) == 2
    assert [sample.name for sample in part.samples] == ["1", "3"]
    assert part[1][0].data_ptr() == whole[3][0].data_ptr()
    last = part.subset(torch.tensor([False, True]))
    assert [image.shape for image in last.images] == [(1, 7, 7)]
    stacked = ImageSet(
        torch.arange(4.0).view(4, 1, 1), torch.zeros(4, 1), torch.ones(4, dtype=torch.bool), whole.samples
    )
    chosen = stacked.subset(torch.tensor([False, False, True, True]))
    assert chosen.batch(torch.tensor([1, 0]))[0].flatten().tolist() == [3, 2]
    assert isinstance(chosen.images, torch.Tensor)
    assert chosen.images.flatten().tolist() == [2, 3]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4),
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=25)
def test_patches_are_crops_of_image_and_label_alike(
    shapes: list[tuple[int, int, int]], size: tuple[int, int, int], seed: int
) -> None:
    images = squares(*shapes)
    indices = torch.arange(len(shapes))
    pixels, labels = images.patches(indices, size, torch.Generator().manual_seed(seed))
    assert pixels.shape == (len(shapes), 1, *size)
    assert labels.shape == (len(shapes), *size)
    again, _ = images.patches(indices, size, torch.Generator().manual_seed(seed))
    assert torch.equal(pixels, again)
    for index, shape in enumerate(shapes):
        whole, label = images[index]
        patch = pixels[index, 0]
        assert patch[0, 0, 0] > 0  # padding comes after the image, never before it
        start = np.unravel_index(int(patch[0, 0, 0]) - 1, shape)
        box = tuple(slice(begin, begin + extent) for begin, extent in zip(start, size, strict=True))
        naive = np.zeros(size)
        crop = whole[0][box].numpy()
        naive[tuple(slice(extent) for extent in crop.shape)] = crop
        np.testing.assert_array_equal(patch, naive)
        assert crop.shape == tuple(min(pair) for pair in zip(shape, size, strict=True))
        assert int(labels[index].sum()) == int(label[box].sum())


def test_half_of_the_patches_hold_rare_foreground() -> None:
    images = squares((40, 40))
    indices = torch.zeros(400, dtype=torch.long)
    _, labels = images.patches(indices, (8, 8), torch.Generator().manual_seed(1))
    assert 160 < int(labels.flatten(1).any(1).sum()) < 240
    _, labels = images.patches(indices, (8, 8), torch.Generator().manual_seed(1), labelled=False)
    assert int(labels.flatten(1).any(1).sum()) < 10


def test_rare_classes_are_centred_as_often_as_common_ones() -> None:
    label = torch.zeros(40, 40, dtype=torch.uint8)
    label[:20] = 1
    label[39, 39] = 2
    images = ImageSet(
        [torch.zeros(1, 40, 40)], [label], torch.ones(1, dtype=torch.bool), [Sample("a", "x", "x", None, None, None)]
    )
    _, labels = images.patches(torch.zeros(400, dtype=torch.long), (4, 4), torch.Generator().manual_seed(2))
    assert 70 < int((labels == 2).flatten(1).any(1).sum()) < 135


def test_patches_cover_the_whole_image() -> None:
    images = squares((6, 5))
    pixels, _ = images.patches(
        torch.zeros(300, dtype=torch.long), (2, 2), torch.Generator().manual_seed(3), labelled=False
    )
    corners = {int(patch[0, 0, 0]) for patch in pixels}
    assert corners == {row * 5 + column + 1 for row in range(5) for column in range(4)}
