"""Mean and deviation of images without polyclinic are those of polyclinic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyclinic.data import site_intensity as own
from polyclinic.export.standalone.site_intensity import intensity_of, moments_of, standardised
from polyclinic.recipe import DataSettings


@pytest.mark.parametrize("statistics", ["scalar", "channel"])
@pytest.mark.parametrize("nonzero", [False, True])
def test_numbers_and_scaled_images_are_those_of_the_run(statistics: str, nonzero: bool) -> None:
    settings = DataSettings.model_validate(
        {"intensity": "site", "intensity_statistics": statistics, "nonzero": nonzero}
    )
    rng = np.random.default_rng(0)
    images = [(rng.normal(3, 2, (2, 5, 4)) * (rng.random((2, 5, 4)) > 0.3)).astype(np.float32) for _ in range(3)]
    absent = [(), (1,), ()]
    images[1][1] = 0
    pairs = list(zip(images, absent, strict=True))
    wanted = own.intensity_of([own.moments_of(torch.from_numpy(i), nonzero, a) for i, a in pairs], settings)
    found = intensity_of([moments_of(i, nonzero, a) for i, a in pairs], statistics)
    assert found["mean"] == pytest.approx(wanted.mean, rel=1e-12)
    assert found["deviation"] == pytest.approx(wanted.deviation, rel=1e-12)
    for image, lacking in pairs:
        scaled = standardised(image, found["mean"], found["deviation"], nonzero, lacking)
        np.testing.assert_allclose(scaled, wanted.scaled(torch.from_numpy(image), lacking), rtol=1e-6, atol=1e-6)


def test_a_constant_and_nothing_at_all_are_no_division_by_zero() -> None:
    constant = moments_of(np.full((1, 3, 3), 0.1, np.float32), nonzero=False)
    assert intensity_of([constant], "scalar")["deviation"] == [1.0]
    nothing = moments_of(np.zeros((1, 3, 3), np.float32), nonzero=True)
    assert intensity_of([nothing], "channel") == {"mean": [0.0], "deviation": [1.0]}
