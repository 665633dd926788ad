"""Places of images and labels: none overlap, none is left out, whatever the sizes."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.data import site_layout
from polyclinic.data.cache_entry import Entry, Layout, MemoryTarget
from polyclinic.data.federation import Item
from polyclinic.data.foreground import foreground_voxels
from polyclinic.data.preprocessing import Geometry, Prepared
from polyclinic.data.site_layout import (
    Grid,
    ImagesLayout,
    LabelsLayout,
    require_grid,
    stored_grids,
    visible_rows,
)

GRIDS = st.lists(st.builds(Grid, st.integers(1, 4), st.sampled_from([(3, 2), (4, 5), (1, 1)])), min_size=1, max_size=5)


def prepared(grid: Grid, channels: int, seed: int) -> list[Prepared]:
    generator = torch.Generator().manual_seed(seed)
    geometry = Geometry(grid.shape, np.eye(4), (*grid.shape, grid.rows), np.diag([1.0, 2.0, 5.0, 1.0]), 2, True)
    return [
        Prepared(
            "x",
            torch.rand(channels, *grid.shape, generator=generator),
            torch.randint(0, 3, grid.shape, dtype=torch.uint8, generator=generator),
            (1.0, 2.0),
            row,
            geometry,
        )
        for row in range(grid.rows)
    ]


def written(layout: ImagesLayout | LabelsLayout, samples: list[list[Prepared]], order: list[int]) -> Entry:
    target, about = MemoryTarget(layout.layout), {}
    for number in order:
        about[number] = layout.write(target, number, samples[number])
    return target.entry({"items": [about[number] for number in range(len(samples))]})


@given(GRIDS, st.integers(1, 3), st.randoms(use_true_random=False))
def test_images_lie_one_behind_the_other(grids: list[Grid], channels: int, random: object) -> None:
    samples = [prepared(grid, channels, number) for number, grid in enumerate(grids)]
    order = list(range(len(grids)))
    random.shuffle(order)  # type: ignore[attr-defined]
    entry = written(ImagesLayout(grids, channels), samples, order)
    flat = torch.cat([one.image.flatten() for group in samples for one in group])
    assert torch.equal(entry.tensors["images"].flatten(), flat)
    assert (entry.tensors["images"].ndim == 4) == (len({grid.shape for grid in grids}) == 1)
    assert stored_grids(entry) == grids
    assert entry.index["items"][0]["spacing"] == [1.0, 2.0]
    assert entry.index["items"][0]["slice_spacing"] == 5.0


@given(GRIDS, st.data(), st.booleans())
def test_labels_hold_what_is_visible_and_their_foreground(grids: list[Grid], data: st.DataObject, large: bool) -> None:
    samples = [prepared(grid, 1, number) for number, grid in enumerate(grids)]
    items = [Item("a", "x", (), data.draw(st.sampled_from([None, Path("l")])), "x") for _ in grids]
    visible = [visible_rows(item, grid) for item, grid in zip(items, grids, strict=True)]
    site_layout._STORED_FROM, before = (6 if large else 10**6), site_layout._STORED_FROM
    try:
        entry = written(LabelsLayout(items, grids, 3), samples, list(range(len(grids))))
    finally:
        site_layout._STORED_FROM = before
    labels = [samples[number][row].label for number, rows in enumerate(visible) for row in rows]
    expected = torch.cat(
        [torch.empty(0, dtype=torch.uint8), *(label.flatten() for label in labels if label is not None)]
    )
    assert torch.equal(entry.tensors["labels"].flatten(), expected)
    slot = 0
    for number, about in enumerate(entry.index["items"]):
        assert about["rows"] == len(visible[number])
        assert (about["foreground"] is not None) == (large and prod(grids[number].shape) >= 6)
        for row, classes in enumerate(about["foreground"] or ()):
            label = samples[number][visible[number][row]].label
            assert label is not None
            found = {value: entry.tensors["foreground"][slot, value - 1, :count].tolist() for value, count in classes}
            assert found == {value: voxels.tolist() for value, voxels in foreground_voxels(label).items()}
            slot += 1
    assert slot == len(entry.tensors["foreground"])


def test_slices_outside_of_the_budget_are_not_visible() -> None:
    grid = Grid(4, (2, 2))
    item = Item("a", "x", (), Path("l"), "x", labelled_slices=(1, 3))
    assert visible_rows(item, grid) == (1, 3)
    layout = LabelsLayout([item], [grid], 2)
    entry = written(layout, [prepared(grid, 1, 0)], [0])
    assert entry.tensors["labels"].shape == (2, 2, 2)
    assert isinstance(layout.layout, Layout)


def test_an_image_that_is_not_what_its_header_said_gets_a_sentence() -> None:
    item, grid = Item("a", "x", (Path("x.png"),), None, "x"), Grid(2, (3, 2))
    require_grid(item, grid, prepared(grid, 1, 0))
    for other in (Grid(3, (3, 2)), Grid(2, (2, 3))):
        with pytest.raises(
            PolyclinicError, match=r"^x\.png: its header promises 2 of size \[3, 2\], and its voxels are"
        ):
            require_grid(item, grid, prepared(other, 1, 0))
