"""Keys change with everything that changes tensors, and with nothing else."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from polyclinic.data import cache_keys as module
from polyclinic.data.cache_keys import CacheKeys, cache_keys
from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.formats.registry import FORMATS, Format, Header, register_format
from polyclinic.data.label_values import LabelValues
from polyclinic.recipe import DataSettings

TASK = Task(("background", "x"), 2, 2)


def item_in(folder: Path) -> Item:
    folder.mkdir()
    (folder / "x.png").write_bytes(b"1")
    (folder / "y.png").write_bytes(b"2")
    return Item("a", "x", (folder / "x.png",), folder / "y.png", "case")


def keys(*items: Item, task: Task = TASK, sliced: bool = False, **settings: Any) -> CacheKeys:
    return cache_keys(items, Federation("f", task, {}, Path(), sliced), DataSettings(**settings))


def test_keys_change_with_everything_that_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = item_in(tmp_path / "a")
    found = [
        keys(item),
        keys(item, size=(8, 8)),
        keys(item, intensity="z-score"),
        keys(item, slice_axis=1),
        keys(item, sliced=True),
        keys(item, task=Task(("background", "x"), 3, 2)),
        keys(item, task=Task(("background", "x"), 2, 2, spacing=(1.0, 1.0))),
        keys(item, item),
        keys(replace(item, places=(0,))),
        keys(replace(item, places=(1,))),
    ]
    (tmp_path / "a" / "x.png").write_bytes(b"3")
    os.utime(tmp_path / "a" / "x.png", ns=(1, 1))
    found.append(keys(item))
    monkeypatch.setattr(module, "CACHE_FORMAT", -1)
    found.append(keys(item))
    monkeypatch.setattr(module, "_library_versions", lambda: ("torch 99",))
    found.append(keys(item))
    assert len({key.images for key in found}) == len({key.labels for key in found}) == len(found)


def test_labels_change_their_own_key_alone(tmp_path: Path) -> None:
    item = item_in(tmp_path / "a")
    classes = keys(item, task=Task(("background", "x", "y"), 2, 2))
    some = keys(replace(item, labelled_slices=(0,)))
    merged = [keys(replace(item, label_values=LabelValues(((0, 0), (1, 1)), others))) for others in (None, 1)]
    without = keys(replace(item, label=None))
    before = keys(item)
    (tmp_path / "a" / "y.png").write_bytes(b"3")
    found = [keys(item), before, classes, some, without, *merged]
    assert len({key.labels for key in found}) == len(found)
    assert len({key.images for key in found}) == 1
    assert without.labels == ""


def test_names_places_and_times_do_not_matter(tmp_path: Path) -> None:
    here, there = item_in(tmp_path / "a"), item_in(tmp_path / "b")
    os.utime(tmp_path / "b" / "x.png", ns=(1, 1))
    moved = replace(there, site="b", name="other", case="other", split="test")
    assert keys(here) == keys(moved)
    assert keys(here) == keys(here, split=(0.5, 0.25, 0.25), memory_limit_mb=1, cache="elsewhere", cache_limit_mb=5)
    unlabelled = replace(there, label=None)
    assert keys(here, unlabelled).labels == keys(unlabelled, here).labels == keys(here).labels


def test_the_suffix_and_the_code_of_a_plugin_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = item_in(tmp_path / "a")
    (tmp_path / "a" / "x.png").rename(tmp_path / "a" / "x.xyz")
    plain = keys(replace(item, images=(tmp_path / "a" / "x.xyz",))).images
    found = [plain]
    for number in range(2):
        code = tmp_path / f"plugin{number}.py"
        code.write_text(f"# {number}")
        plugin = ModuleType(f"plugin{number}")
        plugin.__file__ = str(code)
        monkeypatch.setitem(sys.modules, plugin.__name__, plugin)

        def read(path: Path, label: bool) -> np.ndarray:
            raise NotImplementedError

        read.__module__ = plugin.__name__
        monkeypatch.setattr("polyclinic.data.formats.registry.FORMATS", dict(FORMATS))
        register_format(Format((".xyz",), lambda _: Header((), 1, None), read))
        found.append(keys(replace(item, images=(tmp_path / "a" / "x.xyz",))).images)
    assert len(set(found)) == 3


def test_whoever_adds_to_an_image_or_a_task_must_think_of_the_key() -> None:
    """Put a new field into the key, or say here that it changes no tensor."""
    in_the_key = {"images", "label", "labelled_slices", "places", "label_values"}
    assert {field.name for field in fields(Item)} == in_the_key | {"site", "name", "case", "split"}
    in_the_key = {"classes", "channels", "spatial_dims", "neighbours", "spacing"}
    # Without zero_fill a missing channel is an error, and with it the places of the others are in the key.
    assert {field.name for field in fields(Task)} == in_the_key | {"modality", "regions", "zero_fill"}


def test_only_named_files_are_read(tmp_path: Path) -> None:
    item = item_in(tmp_path / "a")
    hidden = replace(item, label=None)
    before = keys(hidden)
    (tmp_path / "a" / "y.png").unlink()
    assert keys(hidden) == before
