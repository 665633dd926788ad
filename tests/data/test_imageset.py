from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.data.imageset import ImageSet, Sample


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


def test_the_wanted_share_of_the_patches_holds_rare_foreground() -> None:
    images = squares((40, 40))
    indices = torch.zeros(400, dtype=torch.long)
    _, labels = images.patches(indices, (8, 8), torch.Generator().manual_seed(1))
    assert 160 < int(labels.flatten(1).any(1).sum()) < 240
    for share, least, most in ((0.0, 0, 10), (0.25, 70, 130), (1.0, 400, 400)):
        _, labels = images.patches(indices, (8, 8), torch.Generator().manual_seed(1), foreground=share)
        assert least <= int(labels.flatten(1).any(1).sum()) <= most
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


def test_labels_by_place() -> None:
    pixels, labels = torch.arange(4.0).view(4, 1, 1, 1), torch.tensor([[[5]], [[6]]], dtype=torch.uint8)
    samples = squares((1, 1), (1, 1), (1, 1), (1, 1)).samples
    places = torch.tensor([1, -1, 0, -1])
    some = ImageSet(pixels, labels, places >= 0, samples, label_rows=places)
    assert some.batch(torch.arange(4))[1].flatten().tolist() == [6, 0, 5, 0]
    assert some.batch(torch.tensor([1, 3]))[1].flatten().tolist() == [0, 0]
    assert [int(some[index][1]) for index in range(4)] == [6, 0, 5, 0]
    assert isinstance(some.labels, torch.Tensor)
    assert some.labels.flatten().tolist() == [6, 0, 5, 0]
    part = some.subset(torch.tensor([False, True, True, False]))
    assert part.batch(torch.tensor([1, 0]))[1].flatten().tolist() == [5, 0]
    assert int(part[1][1]) == 5
    none = ImageSet(pixels, [], torch.zeros(4, dtype=torch.bool), samples, label_rows=torch.full((4,), -1))
    assert none.batch(torch.arange(4))[1].dtype == torch.int64
    assert not none.batch(torch.arange(4))[1].any()


class Advised:
    """Notes what is to be read ahead."""

    def __init__(self) -> None:
        self.views: list[torch.Tensor] = []

    def will_need(self, view: torch.Tensor) -> None:
        self.views.append(view)


def test_what_is_read_ahead_is_what_is_read() -> None:
    ahead, label_ahead = Advised(), Advised()
    whole = squares((9, 8), (7, 7), (12, 5))
    places = torch.tensor([0, -1, 1])
    images = ImageSet(
        list(whole.images), [whole.labels[0], whole.labels[2]], places >= 0, whole.samples, label_rows=places,
        foreground=None, ahead=(ahead, label_ahead),  # type: ignore[arg-type]
    )  # fmt: skip
    images.will_need(torch.tensor([2, 1]))
    assert [view.data_ptr() for view in ahead.views] == [whole[2][0].data_ptr(), whole[1][0].data_ptr()]
    assert [view.data_ptr() for view in label_ahead.views] == [whole[2][1].data_ptr()]
    for seed in range(6):
        ahead.views.clear()
        label_ahead.views.clear()
        images.will_need(torch.tensor([0, 1, 2]), (4, 4), torch.Generator().manual_seed(seed))
        pixels, labels = images.patches(torch.tensor([0, 1, 2]), (4, 4), torch.Generator().manual_seed(seed))
        assert torch.equal(torch.stack(ahead.views), pixels)
        crops = [view for view in label_ahead.views if view.shape == (4, 4)]  # and whole ones, where foreground is
        assert torch.equal(torch.stack(crops).long(), labels[[0, 2]])
        assert len(ahead.views) == 3, "what was asked for is not asked for again"
        images.patches(torch.tensor([1, 2]), (4, 4), torch.Generator().manual_seed(seed))
        assert len(ahead.views) == 5, "but next time it is"
    ahead.views.clear()
    images.batch(torch.tensor([1]))
    images.batch(torch.tensor([1]))
    images.will_need(torch.tensor([1]))
    images.batch(torch.tensor([1]))
    assert [view.data_ptr() for view in ahead.views] == [whole[1][0].data_ptr()] * 3
    ahead.views.clear()
    images.will_need(torch.tensor([0]), (4, 4))
    whole.will_need(torch.tensor([0]))
    assert ahead.views == [], "patches that nobody has drawn yet are not known"
