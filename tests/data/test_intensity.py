"""Intensities are scaled to MONAI's numbers, bit for bit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from monai.transforms import NormalizeIntensity, ScaleIntensity, ScaleIntensityRangePercentiles

from polyclinic.data.intensity import scaled
from polyclinic.recipe import DataSettings


def monais(voxels: torch.Tensor, chosen: DataSettings) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Divide by zero")
        transform: Any = {
            "zero-one": ScaleIntensity(minv=0.0, maxv=1.0, channel_wise=True),
            "z-score": NormalizeIntensity(nonzero=chosen.nonzero, channel_wise=True),
            "percentile": ScaleIntensityRangePercentiles(*chosen.percentiles, 0.0, 1.0, clip=True, channel_wise=True),
        }[chosen.intensity]
        return transform(voxels.clone()).as_tensor()


CHOICES = [
    DataSettings(intensity="zero-one"),
    DataSettings(intensity="z-score"),
    DataSettings(intensity="z-score", nonzero=True),
    DataSettings(intensity="percentile"),
    DataSettings(intensity="percentile", percentiles=(0.0, 100.0)),
    DataSettings(intensity="percentile", percentiles=(10.0, 50.0)),
]
VALUES = st.one_of(
    st.floats(-1e6, 1e6, width=32, allow_subnormal=False), st.sampled_from([0.0, 1.0, 255.0]), st.just(0.0)
)


@given(
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=3, max_dims=4, max_side=7), elements=VALUES),
    st.sampled_from(CHOICES),
    st.sampled_from(["C", "F"]),
)
@settings(deadline=None, max_examples=150)
def test_any_image(array: np.ndarray, chosen: DataSettings, order: Any) -> None:
    voxels = torch.from_numpy(np.array(array, order=order))
    before = voxels.clone()
    assert torch.equal(scaled(voxels, chosen, None), monais(voxels, chosen))
    assert torch.equal(voxels, before)


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
@pytest.mark.parametrize("kind", ["picture", "constant", "zeros", "sparse", "volume"])
def test_images_of_real_sizes(chosen: DataSettings, kind: str) -> None:
    generator = np.random.default_rng(3)
    array = {
        "picture": generator.integers(0, 256, (3, 64, 65)),
        "constant": np.stack([np.full((32, 33), -7.5), generator.normal(size=(32, 33))]),
        "zeros": np.zeros((1, 16, 16)),
        "sparse": np.where(generator.random((1, 90, 70)) < 0.005, 900.0, 0.0),
        # Above a million voxels percentiles are NumPy's; a NIfTI file has its first axis fastest.
        "volume": np.asfortranarray(generator.normal(100, 40, (1, 130, 110, 72))),
    }[kind]
    voxels = torch.from_numpy(array.astype(np.float32))
    assert torch.equal(scaled(voxels, chosen, None), monais(voxels, chosen))


def test_the_full_range_and_no_scaling_look_at_no_value() -> None:
    voxels = torch.tensor([[[10.0, 51.0]]])
    assert torch.equal(scaled(voxels, DataSettings(intensity="full-range"), 255.0), voxels / 255)
    assert torch.equal(scaled(voxels, DataSettings(intensity="none"), 255.0), voxels)
