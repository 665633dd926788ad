"""Images of no known site: scaled by their own mean and deviation, and that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_support import federation_of, picture_item
from polyclinic.data.federation import Item
from polyclinic.data.own_intensity import with_own_intensity
from polyclinic.data.preprocessing import prepare
from polyclinic.data.site_intensity import SiteIntensity
from polyclinic.recipe import DataSettings

SITE = DataSettings(intensity="site")


def test_all_images_together_have_mean_0_and_deviation_1_and_that_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items = [picture_item(tmp_path, rng.integers(0, 99, (6, 6)).astype(np.uint8), name=f"p{n}") for n in range(3)]
    broken = replace(items[0], name="broken", images=(tmp_path / "p9.png",))
    (tmp_path / "p9.png").write_bytes(b"no picture")
    said: list[str] = []
    federation = with_own_intensity(federation_of(2, *items), [*items, broken], SITE, said.append)
    found = torch.stack([prepare(item, federation, SITE)[0].image for item in items])
    assert (float(found.mean()), float(found.std(correction=0))) == pytest.approx((0, 1), abs=1e-4)
    assert said == [
        "data.intensity = site: intensities are scaled by the mean and deviation of 3 images given here, as if they "
        "were all of one site; --site NAME takes those of a site of the run."
    ]


def test_known_numbers_and_other_ways_read_no_image() -> None:
    nowhere = Item("a", "x", (Path("nowhere.png"),), None, "x")
    known = replace(federation_of(2, nowhere), intensity={"a": SiteIntensity((0.0,), (1.0,), False, 1)})
    assert with_own_intensity(known, [nowhere], SITE) is known
    plain = federation_of(2, nowhere)
    assert with_own_intensity(plain, [nowhere], DataSettings()) is plain

