"""Grids of finished tiny runs to make pictures of, and the numbers that pictures hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MORE_TESTS = "data.split=[0.2,0.2,0.6]"  # three test cases at north, two at south


def grid_of(folder: Path, finished: Callable[..., Path], methods: Sequence[str], *overrides: str) -> Path:
    """A grid of one seed in ``folder / "grid"``, with copies of finished runs, so that it may be written to."""
    out = folder / "grid"
    out.mkdir()
    for number, method in enumerate(methods):
        shutil.copytree(finished(method, *overrides), out / f"run{number}")
    entries = [{"method": method, "seed": 0, "folder": f"run{number}"} for number, method in enumerate(methods)]
    (out / "grid.json").write_text(json.dumps({"methods": list(methods), "seeds": [0], "runs": entries}))
    return out


def table(folder: Path, name: str = "gallery.json") -> dict[str, Any]:
    """A table of a folder's gallery."""
    found: dict[str, Any] = json.loads((folder / "gallery" / name).read_text())
    return found


def mask(path: Path) -> NDArray[Any]:
    """The numbers in a mask's picture, 0 where it is transparent."""
    with Image.open(path) as picture:
        assert picture.mode == "P"
        alphas = np.asarray(picture.convert("RGBA"))[..., 3]
        numbers = np.asarray(picture)
    assert ((alphas == 0) == (numbers == 0)).all()
    return numbers


def dice_of_pictures(folder: Path, entry: Mapping[str, Any], method: str, number: int = 1) -> float:
    """Dice of what is painted in one colour, over all slices of an entry: the truth against a method's prediction."""
    hits = total = 0
    for one in entry["slices"]:
        truth, predicted = (
            mask(folder / "gallery" / name) == number for name in (one["truth"], one["predictions"][method])
        )
        hits += int((truth & predicted).sum())
        total += int(truth.sum()) + int(predicted.sum())
    return 2 * hits / total if total else 1.0


def values_of(run: Path, site: str, case: str, metric: str = "dice") -> list[float]:
    """The values of a case in ``cases.csv``, read without the code under test."""
    lines = [line.split(",") for line in (run / "cases.csv").read_text().splitlines()[1:]]
    return [float(line[6]) for line in lines if (line[0], line[1], line[4]) == (site, case, metric)]
