from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from PIL import Image, ImageSequence

from data_support import file_item, nifti, saved
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.formats import FORMATS, Format, Header
from polyclinic.data.writers import mask_path, probabilities_path, write_label, write_probabilities

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


def test_the_path_of_a_mask_is_known_before_it_is_written(tmp_path: Path) -> None:
    item = file_item(saved(tmp_path / "x.jpg", MASK))
    assert write_label(tmp_path / "out" / "patient.v2", MASK, item) == mask_path(tmp_path / "out" / "patient.v2", item)
    assert mask_path(tmp_path / "a.jpg", item).name == "a.png"
    assert probabilities_path(tmp_path / "patient.v2", item).name == "patient.v2.probabilities.tif"


def test_probabilities_of_a_picture_are_pages_class_by_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first = Image.fromarray(MASK)
    first.save(tmp_path / "stack.tif", save_all=True, append_images=[first, first])
    for image, shape in ((saved(tmp_path / "x.png", MASK), (2, 6, 4)), (tmp_path / "stack.tif", (2, 6, 4, 3))):
        array = rng.random(shape).astype(np.float32)
        write_probabilities(tmp_path / "p.tif", array, file_item(image))
        with Image.open(tmp_path / "p.tif") as pages:
            stored = [np.asarray(page.copy()) for page in ImageSequence.Iterator(pages)]
        expected = (
            [array[c] for c in range(2)] if len(shape) == 3 else [array[c, ..., z] for c in (0, 1) for z in range(3)]
        )
        np.testing.assert_array_equal(stored, expected)


@pytest.mark.parametrize("shape", [(6, 4, 5), (6, 4)])
def test_probabilities_of_a_volume_are_the_fourth_axis_of_a_nifti(tmp_path: Path, shape: tuple[int, ...]) -> None:
    affine = np.array([[0.0, -2, 0, 9], [1.5, 0, 0, 8], [0, 0, -3, 7], [0, 0, 0, 1]])
    item = file_item(nifti(tmp_path / "x.nii", np.zeros(shape, np.int16), affine))
    array = np.random.default_rng(0).random((2, *shape)).astype(np.float32)
    write_probabilities(tmp_path / "p.nii.gz", array, item)
    stored = nibabel.load(tmp_path / "p.nii.gz")
    np.testing.assert_allclose(stored.affine, affine)
    assert stored.shape == (*(*shape, 1)[:3], 2)
    np.testing.assert_array_equal(np.asarray(stored.dataobj).reshape(*shape, 2), np.moveaxis(array, 0, -1))
