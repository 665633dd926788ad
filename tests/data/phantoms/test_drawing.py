"""Outlines, noise and edges that all phantoms are drawn with."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.data.phantoms import drawing


def test_ellipse_has_level_one_on_its_outline() -> None:
    axes = drawing.coordinates((101, 101))
    level, _ = drawing.ellipse(axes, (0.1, -0.2), (0.5, 0.25), np.pi / 2)
    # Turned by a quarter, the long radius lies along the second axis.
    row, column = (int(np.argmin(np.abs(axis - place))) for axis, place in ((axes[0][:, 0], 0.1), (axes[1][0], 0.3)))
    assert level[row, column] == pytest.approx(1.0, abs=0.05)
    row = int(np.argmin(np.abs(axes[0][:, 0] - 0.35)))
    column = int(np.argmin(np.abs(axes[1][0] + 0.2)))
    assert level[row, column] == pytest.approx(1.0, abs=0.05)


def test_smooth_noise_is_standardised_and_smooth() -> None:
    noise = drawing.smooth_noise(np.random.default_rng(0), (64, 64), 3.0)
    assert noise.mean() == pytest.approx(0, abs=1e-4)
    assert noise.std() == pytest.approx(1, abs=1e-4)
    neighbours = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
    assert neighbours > 0.9


def test_a_soft_step_goes_from_inside_to_outside() -> None:
    level = np.array([0.0, 0.9, 1.0, 1.1, 2.0], np.float32)
    step = drawing.soft_step(level, 0.1)
    assert step[2] == pytest.approx(0.5)
    assert (np.diff(step) < 0).all()
    assert step[0] == pytest.approx(1, abs=1e-3)
    assert step[-1] == pytest.approx(0, abs=1e-3)


def test_a_wobbly_circle_never_collapses() -> None:
    angle = np.linspace(-np.pi, np.pi, 100, dtype=np.float32)
    for seed in range(20):
        assert drawing.wobble(np.random.default_rng(seed), angle, 2.0).min() >= np.float32(0.4)
    assert np.array_equal(drawing.wobble(np.random.default_rng(0), angle, 0.0), np.ones_like(angle))


def test_shading_is_about_one_and_noise_of_a_scanner_is_never_negative() -> None:
    shading = drawing.bias_field(np.random.default_rng(0), (32, 32), 0.1)
    assert np.log(shading).std() == pytest.approx(0.1, rel=1e-3)
    noisy = drawing.rician(np.random.default_rng(0), np.zeros((64, 64), np.float32), 0.5)
    assert noisy.min() >= 0
    assert noisy.mean() == pytest.approx(0.5 * np.sqrt(np.pi / 2), rel=0.05)  # Rayleigh, where there is no signal
