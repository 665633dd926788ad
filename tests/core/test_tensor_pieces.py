"""Pieces cover tensors once, in order, and write through."""

from __future__ import annotations

import pytest
import torch

from polyclinic.core.tensor_pieces import PIECE, in_pieces


@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (PIECE,), (2, PIECE // 2 + 3)])
def test_pieces_are_the_whole_tensor_in_its_order(shape: tuple[int, ...]) -> None:
    first, second = torch.rand(shape), torch.rand(shape).double()
    pieces = list(in_pieces(first, second))
    assert all(a.shape == b.shape and a.numel() <= PIECE for a, b in pieces)
    assert torch.equal(torch.cat([a.reshape(-1) for a, _ in pieces]), first.reshape(-1))
    for _, piece in pieces:
        piece.fill_(7)
    assert bool((second == 7).all())
