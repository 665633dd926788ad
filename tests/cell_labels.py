"""What the label of a cell of a coarse map can be, written out cell by cell and pixel by pixel."""

from __future__ import annotations

from itertools import product

from torch import Tensor


def labelled_cells(size: tuple[int, ...], labels: Tensor, cells: str) -> list[tuple[tuple[int, ...], int]]:
    """Every cell of one image with its label ``(*spatial)``: once, or with ``share`` once for each of its pixels."""
    full = tuple(labels.shape)
    if cells == "nearest":
        places = list(product(*map(range, size)))
        sources = [tuple(i * n // m for i, n, m in zip(place, full, size, strict=True)) for place in places]
        return [(place, int(labels[source])) for place, source in zip(places, sources, strict=True)]
    inside: dict[tuple[int, ...], list[int]] = {}
    for pixel in product(*map(range, full)):
        place = tuple(i * m // n for i, n, m in zip(pixel, full, size, strict=True))
        inside.setdefault(place, []).append(int(labels[pixel]))
    if cells == "share":
        return [(place, label) for place, found in inside.items() for label in found]
    return [(place, min(set(found), key=lambda c: (-found.count(c), c))) for place, found in inside.items()]
