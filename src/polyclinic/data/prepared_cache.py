"""Prepared tensors on disk, memory-mapped: for sites larger than memory, and for processes that start every round.

An entry is a folder named by a key over everything it depends on. It is written beside its place and then renamed,
so that an entry that exists is whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.data.federation import Item, Task
from polyclinic.recipe import DataSettings

CACHE_FORMAT = 2  # raise it when the same files and settings would give other tensors
_SETTINGS_THAT_MATTER = {
    "crop", "size", "fit", "orientation", "spacing", "intensity", "percentiles", "nonzero", "slice_axis", "neighbours",
}  # fmt: skip
_ABANDONED_AFTER = 24 * 3600  # seconds after which a half-written entry belongs to a process that died


@dataclass(frozen=True)
class CacheRecord:
    """One prepared image ``(channel, *spatial)``, its label ``(*spatial)`` in uint8, and plain data about it."""

    image: Tensor
    label: Tensor
    about: dict[str, Any]


def cache_key(items: Sequence[Item], task: Task, settings: DataSettings) -> str:
    """A hash over the files (path, size, time of change), the settings that matter and the task."""
    what = {
        "format": CACHE_FORMAT,
        "task": [len(task.classes), task.channels, task.spatial_dims, task.neighbours, task.spacing],
        "settings": settings.model_dump(mode="json", include=_SETTINGS_THAT_MATTER),
        "items": [
            [item.site, item.name, item.case, item.labelled_slices, *map(_stamp, (*item.images, item.label))]
            for item in items
        ],
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def _stamp(path: Path | None) -> list[str | int] | None:
    if path is None:
        return None
    try:
        about = path.stat()
    except OSError as error:
        raise PolyclinicError(
            f"{path}: cannot be read ({error.strerror}); restore the file or open the federation again."
        ) from error
    return [str(path.resolve()), about.st_size, about.st_mtime_ns]


def write_entry(folder: Path, key: str, records: Iterable[CacheRecord]) -> Path:
    """Stream records into the entry ``folder / key``; nothing stays in memory, nothing half-written stays behind."""
    entry = folder / key
    part = folder / f".{key}.{os.getpid()}.part"
    try:
        _remove_abandoned(folder)
        part.mkdir(parents=True, exist_ok=True)
        index = []
        with (part / "images.bin").open("wb") as images, (part / "labels.bin").open("wb") as labels:
            for record in records:
                images.write(record.image.contiguous().float().numpy().data)
                labels.write(record.label.contiguous().numpy().data)
                index.append({"shape": list(record.image.shape), **record.about})
            for file in (images, labels):
                file.flush()
                os.fsync(file.fileno())
        write_json(part / "index.json", index)
        try:
            part.rename(entry)
        except OSError:
            if not entry.is_dir():  # else another process was faster with the same content
                raise
    except OSError as error:
        raise PolyclinicError(
            f"{folder}: the cache cannot be written ({error.strerror or error}); "
            "free some space or set data.cache to another folder."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return entry


def read_entry(entry: Path) -> tuple[Tensor | list[Tensor], Tensor | list[Tensor], list[dict[str, Any]]]:
    """Map an entry: images, labels (one tensor each when sizes agree) and the data about them. Never write to them."""
    try:
        index = json.loads((entry / "index.json").read_text(encoding="utf-8"))
        shapes = [tuple(row.pop("shape")) for row in index]
        images = _mapped(entry / "images.bin", np.dtype(np.float32), shapes)
        labels = _mapped(entry / "labels.bin", np.dtype(np.uint8), [shape[1:] for shape in shapes])
    except (OSError, ValueError, KeyError) as error:
        raise PolyclinicError(
            f"{entry}: the cache entry is damaged ({error}); remove this folder and start again."
        ) from error
    return images, labels, index


def _mapped(path: Path, dtype: np.dtype[Any], shapes: list[tuple[int, ...]]) -> Tensor | list[Tensor]:
    if not shapes:
        return []
    sizes = [math.prod(shape) for shape in shapes]
    if path.stat().st_size != sum(sizes) * dtype.itemsize:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, expected {sum(sizes) * dtype.itemsize}")
    array = np.memmap(path, dtype=dtype, mode="r")
    with warnings.catch_warnings():
        # Read-only on purpose: a private writable mapping larger than memory may be refused by the kernel.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        flat = torch.from_numpy(array)
    if len(set(shapes)) == 1:
        return flat.view(len(shapes), *shapes[0])
    return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), shapes, strict=True)]


def _remove_abandoned(folder: Path) -> None:
    for part in folder.glob(".*.part") if folder.is_dir() else ():
        if part.is_dir() and time.time() - part.stat().st_mtime > _ABANDONED_AFTER:
            shutil.rmtree(part, ignore_errors=True)
