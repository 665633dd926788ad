from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_support import file_item, saved
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.formats import FORMATS, Format, Header
from polyclinic.data.writers import write_label

MASK = (np.arange(6 * 4).reshape(6, 4) % 3).astype(np.uint8)


def test_a_label_on_another_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        write_label(tmp_path / "y.png", MASK.T, file_item(saved(tmp_path / "x.png", MASK)))
    assert not (tmp_path / "y.png").exists()


def test_a_format_without_masks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only = Format((".txt",), lambda path: Header((1, 2), 1, None), lambda path, label: np.zeros((1, 1, 2)))
    monkeypatch.setitem(FORMATS, ".txt", read_only)
    with pytest.raises(
        PolyclinicError, match=r"a\.txt: masks cannot be written as \.txt; give its format a write_mask"
    ):
        write_label(tmp_path / "mask", np.zeros((1, 2)), file_item(tmp_path / "a.txt"))
