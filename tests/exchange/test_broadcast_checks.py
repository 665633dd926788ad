from __future__ import annotations

import pytest
import torch
from torch import Tensor

from polyclinic.exchange.broadcast_checks import broadcast_problem
from polyclinic.exchange.declarations import Shared

RETURNED = {
    "plain": (Shared("a", ("rows", 2), "rows"), Shared("b", ("rows",), "classes", torch.int64, below=3)),
    "each": (Shared("images/*", ("means", 2), "means"), Shared("labels/*", ("means",), "counts", torch.uint8)),
    "nothing": (),
}


def each(*counts: int) -> dict[str, Tensor]:
    images = {f"images/{owner}": torch.rand(count, 2) for owner, count in enumerate(counts)}
    return images | {f"labels/{owner}": torch.zeros(count, dtype=torch.uint8) for owner, count in enumerate(counts)}


def plain(rows: int = 3, classes: int = 3) -> dict[str, Tensor]:
    return {"a": torch.rand(rows, 2), "b": torch.arange(classes) % 3}


def test_what_is_declared_is_taken() -> None:
    for shared in ({}, {"nothing": {}}, {"plain": plain()}, {"plain": plain(0, 0), "each": each(3, 0, 5)}):
        assert broadcast_problem(shared, RETURNED) is None


@pytest.mark.parametrize(
    ("shared", "words"),
    [
        ({"nothing": {"a": torch.zeros(1)}}, "component nothing takes nothing from the server"),
        ({"evil": {"a": torch.zeros(1)}}, "component evil takes nothing from the server"),
        ({"plain": {"a": torch.rand(3, 2)}}, "'b'"),
        ({"plain": {**plain(), "c": torch.rand(1)}}, "'c'"),
        ({"plain": {**plain(), "a": torch.rand(3, 1)}}, "shape (3, 1)"),
        ({"plain": {**plain(), "a": torch.rand(3, 2).double()}}, "torch.float64"),
        ({"plain": {**plain(), "a": torch.full((3, 2), torch.nan)}}, "NaN"),
        ({"plain": {**plain(), "b": torch.arange(3) + 1}}, "outside 0 to 2"),
        ({"plain": plain(3, 2)}, "3 rows in 'a' and 2 in 'b'"),
        ({"each": {k: t for k, t in each(2, 2).items() if k != "labels/1"}}, "'labels/1'"),
        ({"each": {**each(2), "images/0": torch.rand(3, 2)}}, "means"),
        ({"each": {**each(2), "images/x": torch.rand(2, 2)}}, "'images/x'"),
        ({"each": {**each(2), "other": torch.rand(2, 2)}}, "'other'"),
    ],
)
def test_anything_else_is_refused(shared: dict[str, dict[str, Tensor]], words: str) -> None:
    problem = broadcast_problem(shared, RETURNED)
    assert problem is not None
    assert words in problem
