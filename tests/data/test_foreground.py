from __future__ import annotations

import numpy as np
import torch

from polyclinic.data.foreground import VOXELS_PER_CLASS, StoredForeground, foreground_voxels


def test_few_voxels_are_all_there_and_many_are_spread() -> None:
    label = torch.zeros(60, 50, dtype=torch.uint8)
    label[3, 4:7] = 2
    label[10:, :] = 5
    found = foreground_voxels(label)
    assert list(found) == [2, 5]
    assert found[2].tolist() == [3 * 50 + 4, 3 * 50 + 5, 3 * 50 + 6]
    many = np.flatnonzero(label.numpy() == 5)
    assert found[5].tolist() == many[::3].tolist()
    assert len(found[5]) <= VOXELS_PER_CLASS
    assert foreground_voxels(torch.zeros(3, 3, dtype=torch.uint8)) == {}


def test_stored_voxels_are_found_by_row() -> None:
    voxels = torch.arange(2 * 2 * VOXELS_PER_CLASS, dtype=torch.int32).view(2, 2, VOXELS_PER_CLASS)
    stored = StoredForeground(voxels, {7: (1, [(2, 3)]), 8: (0, [])})
    assert stored.of(6) is None
    assert stored.of(8) == []
    (found,) = stored.of(7) or ()
    assert found.tolist() == [3 * VOXELS_PER_CLASS + n for n in range(3)]
