"""Traits of a federation, from its check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyclinic.data.check import check_federation
from polyclinic.data.federation_traits import FederationTraits, polarity_of
from polyclinic.data.phantoms import write_demo


def site(folder: Path, name: str, images: int, inside: int, outside: int, seed: int, width: int = 8) -> None:
    rng = np.random.default_rng(seed)
    for number in range(images):
        label = np.zeros((32, 40), np.uint8)
        label[:, 10 : 10 + width] = 1
        values = np.where(label > 0, inside, outside) + rng.integers(0, 20, label.shape)
        for part, array in (("images", values.astype(np.uint8)), ("labels", label)):
            path = folder / name / part / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(path)


def traits(folder: Path) -> FederationTraits:
    (folder / "federation.toml").write_text('classes = ["background", "strip"]\n')
    return FederationTraits.of(check_federation(folder))


def test_numbers_are_those_of_the_images(tmp_path: Path) -> None:
    site(tmp_path, "north", 3, 200, 60, 0)
    site(tmp_path, "south", 5, 180, 40, 1)
    (tmp_path / "south" / "labels" / "0.png").unlink()
    found = traits(tmp_path)
    assert (found.sites, found.smallest_site, found.largest_site) == (2, 3, 5)
    assert (found.dims, found.classes, found.size) == (2, 1, (32, 40))
    assert found.labelled == pytest.approx(7 / 8)
    assert found.foreground == pytest.approx(8 / 40)
    assert found.width == pytest.approx(8)
    assert found.polarity == "brighter"
    assert found.middle == (32, 20), "columns 10 to 18 of 40, and the same on the other side"
    assert found.anisotropy == 1.0
    assert found.pictures
    assert not found.is_thin


def test_sites_of_two_polarities_are_mixed_and_far_apart(tmp_path: Path) -> None:
    site(tmp_path, "bright", 4, 200, 60, 0, width=3)
    site(tmp_path, "dark", 4, 60, 200, 1, width=3)
    found = traits(tmp_path)
    assert found.polarity == "mixed"
    assert found.shift_word == "strong"
    assert found.is_thin


def test_volumes_have_an_anisotropy(tmp_path: Path) -> None:
    write_demo("tumour", tmp_path / "fed", size=16, cases=1)
    found = FederationTraits.of(check_federation(tmp_path / "fed"))
    assert (found.dims, found.anisotropy) == (3, pytest.approx(1.0))


def test_slices_of_volumes_are_traits_of_slices(tmp_path: Path) -> None:
    """A prostate of 16 pixels in ten slices is no thin structure, and ten slices are no small image."""
    write_demo("prostate", tmp_path / "fed", cases=1)
    found = FederationTraits.of(check_federation(tmp_path / "fed"))
    assert (found.dims, found.size) == (2, (64, 64))
    assert not found.is_thin
    assert not found.pictures, "volumes have no range of bytes"
    assert found.middle is not None
    assert len(found.middle) == 2


@pytest.mark.parametrize(
    ("shift", "word"), [(None, None), (0.0, "none"), (0.3, "mild"), (0.75, "clear"), (1.3, "strong"), (9.0, "strong")]
)
def test_shifts_have_words(shift: float | None, word: str | None, tmp_path: Path) -> None:
    site(tmp_path, "north", 2, 200, 60, 0)
    assert replace(traits(tmp_path), shift=shift).shift_word == word


def test_without_labels_nothing_is_said_of_structures(tmp_path: Path) -> None:
    site(tmp_path, "north", 2, 200, 60, 0)
    for label in (tmp_path / "north" / "labels").iterdir():
        label.unlink()
    found = traits(tmp_path)
    assert (found.foreground, found.width, found.polarity, found.labelled) == (None, None, "unclear", 0.0)
    assert polarity_of([]) == "unclear"
