"""Images of no known site: scaled by their own mean and deviation, and that is said."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data_support import federation_of, picture_item
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Item
from polyclinic.data.own_intensity import with_own_intensity
from polyclinic.data.preprocessing import prepare
from polyclinic.data.site_intensity import SiteIntensity
from polyclinic.recipe import DataSettings
from polyclinic.runs.predict import predict

SITE = DataSettings(intensity="site")
OVERRIDES = ("data.intensity=site", "training.rounds=2", "training.local_epochs=1")


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


def test_predict_with_a_site_s_numbers_gives_the_masks_that_were_tested(
    tiny_federation: Path, finished: Callable[..., Path], tmp_path: Path
) -> None:
    run, said = finished("fedavg", *OVERRIDES), []
    for site in ("north", "south"):
        masks = predict(run, tiny_federation / site, tmp_path / site, site=site, warn=said.append)
        by_name = {path.stem: np.asarray(Image.open(path)) > 0 for path in masks}
        with (run / "cases.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["site"], row["metric"]) == (site, "dice")]
        assert rows
        for row in rows:
            true = np.asarray(Image.open(tiny_federation / site / "labels" / f"{row['image']}.png")) > 0
            both = by_name[row["image"]]
            assert float(row["value"]) == pytest.approx(2 * (both & true).sum() / (both.sum() + true.sum()), abs=1e-6)
    assert said == []


def test_predict_without_a_site_takes_the_images_own_numbers_and_says_so(
    tiny_federation: Path, finished: Callable[..., Path], tmp_path: Path
) -> None:
    run, said = finished("fedavg", *OVERRIDES), []
    image = tiny_federation / "north" / "images" / "case0.png"
    predict(run, image, tmp_path / "one", warn=said.append)
    assert ["mean and deviation of 1 image given here" in line for line in said] == [True]
    (run_without := tmp_path / "run").mkdir()
    for name in ("recipe.toml", "task.json"):
        shutil.copy(run / name, run_without / name)
    shutil.copytree(run / "checkpoints", run_without / "checkpoints")
    (run_without / "sites" / "north" / "all").mkdir(parents=True)
    with pytest.raises(PolyclinicError, match=r"intensity\.json: is not there, and data\.intensity = site"):
        predict(run_without, image, tmp_path / "none", site="north")


def test_a_site_that_did_not_train_has_no_model_of_its_own(
    tiny_federation: Path, finished: Callable[..., Path], tmp_path: Path
) -> None:
    """It is listed, because its numbers are kept: images are scaled by them, with the weights of all sites."""
    run = finished("fedavg", *OVERRIDES, "protocol.kind=leave-one-site-out")
    assert predict(run, tiny_federation / "north", tmp_path / "masks", site="north", part="without-north")
