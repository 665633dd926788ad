from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Item, Task
from polyclinic.data.prepared_cache import CacheRecord, cache_key, read_entry, write_entry
from polyclinic.recipe import DataSettings

TASK = Task(("background", "x"), 2, 2)


def records(*shapes: tuple[int, int]) -> list[CacheRecord]:
    generator = torch.Generator().manual_seed(0)
    return [
        CacheRecord(
            torch.rand(2, *shape, generator=generator),
            torch.randint(0, 2, shape, dtype=torch.uint8, generator=generator),
            {"number": number},
        )
        for number, shape in enumerate(shapes)
    ]


@pytest.mark.parametrize("shapes", [[(3, 4)] * 3, [(3, 4), (5, 2), (1, 1)]])
def test_what_is_written_is_read(tmp_path: Path, shapes: list[tuple[int, int]]) -> None:
    written = records(*shapes)
    images, labels, about = read_entry(write_entry(tmp_path / "cache", "key", written))
    assert isinstance(images, torch.Tensor) == (len(set(shapes)) == 1)
    assert about == [{"number": 0}, {"number": 1}, {"number": 2}]
    for record, image, label in zip(written, images, labels, strict=True):
        assert torch.equal(record.image, image)
        assert torch.equal(record.label, label)
        assert label.dtype == torch.uint8


def test_views_that_are_not_contiguous_are_written_in_order(tmp_path: Path) -> None:
    image, label = torch.rand(4, 3, 2).permute(2, 0, 1), torch.randint(0, 2, (3, 4), dtype=torch.uint8).T
    images, labels, _ = read_entry(write_entry(tmp_path, "key", [CacheRecord(image, label, {})]))
    assert torch.equal(images[0], image)
    assert torch.equal(labels[0], label)


def test_nothing_half_written_stays(tmp_path: Path) -> None:
    def failing() -> Iterator[CacheRecord]:
        yield from records((3, 4))
        raise PolyclinicError("the second image is damaged")

    with pytest.raises(PolyclinicError, match="second image"):
        write_entry(tmp_path, "key", failing())
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_a_part_that_is_removed_after_a_day(tmp_path: Path) -> None:
    for name, age in ((".old.1.part", 2 * 86400), (".new.2.part", 60)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    write_entry(tmp_path, "key", records((3, 4)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new.2.part", "key"]


def test_a_faster_process_wins(tmp_path: Path) -> None:
    def slow() -> Iterator[CacheRecord]:
        write_entry_of_other = tmp_path / "key"
        (tmp_path / "other").mkdir()
        write_entry(tmp_path / "other", "key", records((3, 4))).rename(write_entry_of_other)
        yield from records((3, 4))

    images, _, _ = read_entry(write_entry(tmp_path, "key", slow()))
    assert torch.equal(images[0], records((3, 4))[0].image)
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_entry_gets_a_sentence(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "key", records((3, 4), (3, 4)))
    with (entry / "images.bin").open("rb+") as file:
        file.truncate(10)
    with pytest.raises(PolyclinicError, match=r"cache entry is damaged \(images.bin has 10 bytes, expected 192\)"):
        read_entry(entry)


def test_a_folder_that_cannot_be_written_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(PolyclinicError, match="cache cannot be written"):
        write_entry(tmp_path / "file", "key", records((3, 4)))


def test_the_key_changes_with_everything_that_matters(tmp_path: Path) -> None:
    for name in ("x.png", "y.png"):
        (tmp_path / name).write_bytes(b"1")
    item = Item("a", "x", (tmp_path / "x.png",), tmp_path / "y.png", "case")

    def key(item: Item = item, task: Task = TASK, **settings: Any) -> str:
        return cache_key([item], task, DataSettings(**settings))

    keys = [
        key(),
        key(size=(8, 8)),
        key(intensity="z-score"),
        key(slice_axis=1),
        key(task=Task(("background", "x", "y"), 2, 2)),
        key(item=Item("a", "x", item.images, None, "case")),
        key(item=Item("a", "x", item.images, item.label, "other case")),
    ]
    os.utime(tmp_path / "y.png", ns=(1, 1))
    keys.append(key())
    (tmp_path / "x.png").write_bytes(b"12")
    os.utime(tmp_path / "x.png", ns=(1, 1))
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == key(split=(0.5, 0.25, 0.25), memory_limit_mb=1, cache="elsewhere")


def test_a_file_that_vanished_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"x\.png: cannot be read"):
        cache_key([Item("a", "x", (tmp_path / "x.png",), None, "x")], TASK, DataSettings())
