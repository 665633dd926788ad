"""All formats and settings, side by side and one after another: the same bits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import itk
import nibabel
import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from polyclinic.data import site_preparation
from polyclinic.data.build_imageset import build_imagesets
from polyclinic.data.federation import Federation
from polyclinic.data.open_federation import open_federation
from polyclinic.data.preprocessing import prepare
from polyclinic.data.site_preparation import Preparation, _Job, _processes
from polyclinic.recipe import DataSettings

SUFFIXES = (".png", ".jpg", ".tif", ".bmp", ".nii.gz", ".mha", ".nrrd")


def write(path: Path, array: np.ndarray) -> None:
    if path.name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(array, np.diag([1.0, 2.0, 3.0, 1.0])), path)
    elif path.suffix in (".mha", ".nrrd"):
        itk.imwrite(itk.image_from_array(np.ascontiguousarray(array.T)), str(path))
    else:
        PILImage.fromarray(array).save(path)


@pytest.fixture(scope="module", params=SUFFIXES)
def federation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Federation:
    root, random = tmp_path_factory.mktemp("f"), np.random.default_rng(0)
    suffix, label_suffix = request.param, ".png" if request.param == ".jpg" else request.param
    volume = suffix in (".nii.gz", ".mha", ".nrrd")
    for folder in ("images", "labels"):
        (root / "a" / folder).mkdir(parents=True)
    for number in range(5):
        shape = (8, 6 + number % 2, 3 + number) if volume else (9 + number % 2, 7)
        write(root / f"a/images/p{number}{suffix}", random.integers(0, 255, shape, dtype=np.uint8))
        write(root / f"a/labels/p{number}{label_suffix}", random.integers(0, 2, shape, dtype=np.uint8))
    (root / "federation.toml").write_text('spatial_dims = 2\nclasses = ["background", "x"]')
    return open_federation(root)


@pytest.mark.parametrize("keys", [{"intensity": "z-score"}, {"size": (8, 4), "neighbours": 1}], ids=["own", "one"])
def test_side_by_side_gives_the_bits_of_one_after_another(federation: Federation, keys: dict[str, Any]) -> None:
    if not federation.volumes_as_slices:
        keys = {key: value for key, value in keys.items() if key != "neighbours"}
    settings = DataSettings(cache="off", **keys)
    federation = open_federation(federation.root, settings)
    made = [sample for item in federation.sites["a"] for sample in prepare(item, federation, settings)]
    threads = torch.get_num_threads()
    for processes in (1, 3):
        images = build_imagesets(federation.sites, Preparation(federation, settings, processes))["a"]
        assert len(images) == len(made)
        for index, sample in enumerate(made):
            assert sample.label is not None
            assert torch.equal(images[index][0], sample.image)
            assert torch.equal(images[index][1], sample.label)
            assert images.samples[index].spacing == sample.spacing
            assert images.samples[index].slice_index == sample.slice_index
    assert torch.get_num_threads() == threads


@dataclass(frozen=True)
class FakeGrid:
    bytes: int
    rows: int = 1

    def row_bytes(self, channels: int) -> int:
        return self.bytes


@pytest.mark.parametrize(
    ("images", "size", "limit", "asked", "processes"),
    [
        (4, 10**4, 4096, None, 1),  # not worth a process
        (10**4, 10**4, 4096, None, 8),
        (400, 10**4, 4096, None, 2),
        (8, 10**8, 4096, None, 6),  # six copies each must fit
        (8, 10**10, 4096, None, 1),
        (4, 10**4, 4096, 3, 3),
    ],
)
def test_processes_are_worth_their_while_and_fit_into_memory(
    federation: Federation, images: int, size: int, limit: float, asked: int | None, processes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(site_preparation, "available_cores", lambda: 8)
    jobs = [_Job(federation.sites["a"][0], 0, FakeGrid(size), ())] * images  # type: ignore[arg-type]
    assert _processes(jobs, Preparation(federation, DataSettings(memory_limit_mb=limit), asked)) == processes


def test_one_thread_prepares_whatever_the_recipe_says(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(*arguments: Any) -> Any:
        seen.append((os.getpid(), torch.get_num_threads()))
        return prepare(*arguments)

    monkeypatch.setattr(site_preparation, "prepare", spy)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        build_imagesets(federation.sites, Preparation(federation, DataSettings(cache="off"), 1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert {threads for _, threads in seen} == {1}
