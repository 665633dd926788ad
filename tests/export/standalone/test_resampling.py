"""Interpolation against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from polyclinic.export.standalone.resampling import along, resampled

STRAIGHT = np.array([[0.6, 0, 0, 0.3], [0, 1.4, 0, -0.5], [0, 0, 1.0, 0], [0, 0, 0, 1]])
TURNED = np.array([[0, -1.0, 0, 5.0], [0, 0, 0.8, 0.1], [1.2, 0, 0, 0], [0, 0, 0, 1]])
ASKEW = STRAIGHT + np.array([[0, 0.2, 0, 0], [0, 0, 0.1, 0], [0.05, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize("matrix", [STRAIGHT, TURNED, ASKEW], ids=["straight", "turned", "askew"])
def test_values_are_linear_between_voxels_and_the_nearest_outside(matrix: np.ndarray) -> None:
    voxels, shape = np.random.default_rng(0).random((2, 6, 5, 7)), (5, 6, 4)
    index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij")).reshape(3, -1)
    places = matrix[:3, :3] @ index + matrix[:3, 3:]
    wanted = [map_coordinates(channel, places, order=1, mode="nearest").reshape(shape) for channel in voxels]
    np.testing.assert_allclose(resampled(voxels, matrix, shape), wanted, atol=1e-12)


def test_one_axis_of_one_voxel() -> None:
    np.testing.assert_array_equal(along(np.array([[3.0]]), 1, np.array([-1.0, 0.0, 2.0])), [[3.0, 3.0, 3.0]])
