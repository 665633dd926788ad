"""What is written is read, mapped or not, by safetensors too; damage is noticed."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from polyclinic.data import cache_entry as module
from polyclinic.data.cache_entry import Block, CacheUnusableError, Entry, FileTarget, Layout, MemoryTarget, read_entry

INDEX = {"items": [{"shape": [2, 3], "spacing": None}]}


def values(shape: tuple[int, ...], kind: str) -> np.ndarray:
    numbers = np.arange(int(np.prod(shape))).reshape(shape) % 251
    return numbers.astype({"F32": "<f4", "U8": "u1", "I32": "<i4"}[kind])


def written(path: Path, blocks: dict[str, Block], index: Any = INDEX) -> Path:
    layout = Layout(blocks)
    with path.open("wb+") as file:
        target = FileTarget(file.fileno(), layout)
        for name, block in reversed(blocks.items()):  # in any order
            target.write(layout.places[name], values(block.shape, block.kind))
        target.finish(index)
    return path


def in_memory(blocks: dict[str, Block]) -> Entry:
    layout = Layout(blocks)
    target = MemoryTarget(layout)
    for name, block in blocks.items():
        target.write(layout.places[name], values(block.shape, block.kind))
    return target.entry(INDEX)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=3, max_size=3), st.booleans())
def test_what_is_written_is_read(shapes: list[tuple[int, int]], mapped: bool) -> None:
    import tempfile

    kinds = dict(zip(("foreground", "images", "labels"), ("I32", "F32", "U8"), strict=True))
    blocks = {name: Block(kind, shape) for (name, kind), shape in zip(kinds.items(), shapes, strict=True)}
    module._SMALL, before = (0 if mapped else 2**20), module._SMALL
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = written(Path(folder) / "x.safetensors", blocks)
            entry, plain = read_entry(path), load_file(path)
    finally:
        module._SMALL = before
    assert (entry.ahead is not None) == mapped
    for found in (entry, in_memory(blocks)):
        assert found.index == INDEX
        for name, block in blocks.items():
            expected = torch.from_numpy(values(block.shape, block.kind))
            assert torch.equal(found.tensors[name], expected)
            assert torch.equal(plain[name], expected)
    assert json.loads(bytes(plain["index"].tolist())) == INDEX


def test_parts_go_to_their_places(tmp_path: Path) -> None:
    layout = Layout({"a": Block("F32", (2, 3)), "b": Block("U8", (4,))})
    assert (layout.places, layout.bytes) == ({"a": 0, "b": 24}, 28)
    with (tmp_path / "x").open("wb+") as file:
        file.write(b"left by a process that was killed" * 1000)
        file.flush()
        target = FileTarget(file.fileno(), layout)
        target.write(12, np.array([[1, 2, 3]], np.float32).T[::-1])
        target.write(26, np.array([7, 8], np.uint8))
        target.finish([])
    entry = read_entry(tmp_path / "x")
    assert entry.tensors["a"].tolist() == [[0, 0, 0], [3, 2, 1]]
    assert entry.tensors["b"].tolist() == [0, 0, 7, 8]


@pytest.mark.parametrize("small", [True, False])
def test_use_is_noted_and_damage_noticed(tmp_path: Path, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not small:
        monkeypatch.setattr(module, "_SMALL", 0)
    path = written(tmp_path / "x", {"a": Block("F32", (5,))})
    whole = path.read_bytes()
    os.utime(path, (1, 1))
    read_entry(path)
    assert path.stat().st_mtime > 10**9
    for damaged in (whole[:-1], whole + b"x", whole[:10], b"", b"x" * len(whole), struct.pack("<Q", 9) + b"[]"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"expected|header"):
            read_entry(path)
    path.write_bytes(whole[:4100] + b"x" + whole[4101:])
    if small:
        with pytest.raises(ValueError, match="checksum"):
            read_entry(path)
    with pytest.raises(FileNotFoundError):
        read_entry(tmp_path / "none")


def test_a_full_disk_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "x").open("wb+") as file:
        target = FileTarget(file.fileno(), Layout({"a": Block("F32", (5,))}))
        monkeypatch.setattr(os, "pwrite", _full)
        with pytest.raises(CacheUnusableError, match=r"^No space left on device$"):
            target.write(0, np.zeros(5, np.float32))
        monkeypatch.undo()
        monkeypatch.setattr(os, "fsync", _full)
        monkeypatch.setattr(module, "_SMALL", 0)
        with pytest.raises(CacheUnusableError, match="No space left"):
            target.finish([])
        monkeypatch.undo()
        monkeypatch.setattr(os, "ftruncate", _full)
        with pytest.raises(CacheUnusableError, match="No space left"):
            FileTarget(file.fileno(), Layout({}))


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")
