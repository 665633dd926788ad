from __future__ import annotations

from math import pi

import numpy as np
import pytest
import torch
from torch import Tensor

from polyclinic.data.deformation import Deformation, affine_matrices, coins, draw_deformation, reflected, uniform
from polyclinic.recipe import AugmentationSettings


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moved_by(images: Tensor, **settings: float) -> Tensor:
    """The images after a deformation drawn with these settings and the first seed."""
    return draw_deformation(AugmentationSettings(**settings), images.shape, seeded()).apply(images)


def warp(images: Tensor, theta: Tensor, mode: str = "linear") -> Tensor:
    grid = torch.nn.functional.affine_grid(theta, [len(images), 1, *images.shape[2:]], align_corners=False)
    return Deformation(images.ndim - 2, (), torch.arange(len(images)), reflected(grid)).apply(images, mode)


def turned(images: Tensor, degrees: float, plane: int = 0, mode: str = "linear") -> Tensor:
    dims = images.ndim - 2
    angles = torch.zeros(len(images), dims * (dims - 1) // 2)
    angles[:, plane] = degrees * pi / 180
    still = torch.zeros(len(images), dims)
    return warp(images, affine_matrices(angles, torch.ones(len(images)), still, images.shape[2:]), mode)


def test_every_sample_is_mirrored_by_itself_and_exactly() -> None:
    images = torch.rand(64, 1, 4, 6)
    moved = moved_by(images, flip=0.5)
    choices = [(), (-2,), (-1,), (-2, -1)]
    seen = set()
    for image, result in zip(images, moved, strict=True):
        matches = [axes for axes in choices if torch.equal(image.flip(axes), result)]
        assert len(matches) == 1
        seen.add(matches[0])
    assert seen == set(choices)


def test_flips_inside_the_grid_equal_flips_of_the_input() -> None:
    # Both draw the same numbers; only the first has them composed with a (here trivial) warp.
    images = torch.rand(16, 1, 6, 9)
    still = {"rotation": 0.0, "scaling": 0.0, "translation": 0.0}
    warped = moved_by(images, flip=0.5, affine=1, **still)
    flipped = moved_by(images, flip=0.5)
    assert not torch.equal(flipped, images)
    torch.testing.assert_close(warped, flipped, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("size", [7, 8])
def test_quarter_turn_equals_rot90(mode: str, size: int) -> None:
    images = torch.rand(2, 3, size, size)
    torch.testing.assert_close(turned(images, 90, mode=mode), images.rot90(1, (2, 3)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("plane", "axes"), [(0, (3, 4)), (1, (2, 4)), (2, (2, 3))])
def test_quarter_turn_in_every_plane_of_a_volume(plane: int, axes: tuple[int, int]) -> None:
    images = torch.rand(1, 1, 6, 6, 6)
    torch.testing.assert_close(turned(images, 90, plane), images.rot90(1, axes), atol=1e-5, rtol=0)


def test_rotation_is_rigid_in_an_oblong_image() -> None:
    # A disc that touches neither border stays a disc; without the aspect ratio it would become an ellipse.
    rows, columns = np.mgrid[:40, :120]
    disc = ((rows - 19.5) ** 2 + (columns - 59.5) ** 2 < 12**2).astype(np.float32)
    result = turned(torch.from_numpy(disc)[None, None], 37)[0, 0].numpy()
    assert np.abs((result > 0.5) != (disc > 0.5)).sum() <= 0.02 * disc.sum()


def test_scale_enlarges_and_shift_moves_along_its_axis() -> None:
    images = torch.zeros(1, 1, 20, 40)
    images[..., 8:12, 16:24] = 1
    none, one = torch.zeros(1, 1), torch.ones(1)
    larger = warp(images, affine_matrices(none, 2 * one, torch.zeros(1, 2), (20, 40)), "nearest")
    assert torch.equal(larger[0, 0].nonzero().aminmax(dim=0).min, torch.tensor([6, 12]))
    assert torch.equal(larger[0, 0].nonzero().aminmax(dim=0).max, torch.tensor([13, 27]))
    down = warp(images, affine_matrices(none, one, torch.tensor([[0.1, 0.0]]), (20, 40)), "nearest")
    assert torch.equal(down, images.roll(2, 2))


def test_integers_are_not_interpolated() -> None:
    with pytest.raises(ValueError, match="nearest"):
        moved_by(torch.zeros(1, 1, 4, 4, dtype=torch.int64), flip=0.5, affine=0.7)


def test_elastic_strength_is_the_deviation_of_the_shift_at_control_points() -> None:
    # A ramp from 0 to 1 along the rows shows its own displacement; small enough to stay inside.
    size, points = 71, 8
    rows = (torch.arange(size) + 0.5).view(1, 1, -1, 1) / size
    ramp = rows.expand(200, 1, size, size)
    shift = (moved_by(ramp, elastic=1, elastic_grid=points, elastic_strength=0.01) - ramp)[..., 10:-10, 10:-10]
    at_controls = shift[..., ::10, ::10]
    assert at_controls.std().item() == pytest.approx(0.01, rel=0.05)
    # Smooth: no step between neighbours is larger than what a cubic between control points 10 pixels apart allows.
    assert shift.diff(dim=3).abs().max() < 0.3 * shift.abs().max()


def test_affine_limits_bound_what_is_drawn() -> None:
    """A point at the middle moves by the shift alone: twice the share of the image in normalised coordinates."""
    settings = AugmentationSettings(affine=1, rotation=0, scaling=0.25, translation=0.1)
    drawn = draw_deformation(settings, (300, 1, 3, 5), seeded())
    assert drawn.grid is not None
    centres = drawn.grid[:, 1, 2]
    assert 0.19 < centres.abs().max() <= 0.2
    scales = 1 / ((drawn.grid[:, 1, 3, 0] - drawn.grid[:, 1, 1, 0]) / (2 * 2 / 5))
    assert 0.75 <= scales.min() < 0.77
    assert 1.23 < scales.max() <= 1.25


@pytest.mark.parametrize("spatial", [(9, 6), (5, 7, 4)])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_places_and_their_reflection_are_those_of_pytorch(spatial: tuple[int, ...], mode: str) -> None:
    """Far enough outside that coordinates are mirrored more than once."""
    images, dims = torch.rand(3, 2, *spatial), len(spatial)
    settings = AugmentationSettings(affine=1, rotation=90, scaling=0.9, translation=2)
    angles = uniform(-pi / 2, pi / 2, (3, dims * (dims - 1) // 2), numbers := after_coins(settings, images.shape))
    scales, shifts = 1 + uniform(-0.9, 0.9, (3,), numbers), uniform(-2, 2, (3, dims), numbers)
    theta = affine_matrices(angles, scales, shifts, spatial)
    grid = torch.nn.functional.affine_grid(theta, [3, 1, *spatial], align_corners=False)
    assert grid.abs().max() > 3
    how = {"mode": "bilinear" if mode == "linear" else mode, "padding_mode": "reflection", "align_corners": False}
    expected = torch.nn.functional.grid_sample(images, grid, **how)
    moved = draw_deformation(settings, images.shape, seeded()).apply(images, mode)
    near = torch.isclose(moved, expected, atol=1e-4)
    assert near.all() if mode == "linear" else near.double().mean() > 0.99  # a place half-way between two voxels


def after_coins(settings: AugmentationSettings, shape: torch.Size) -> torch.Generator:
    """The first seed's numbers from where a deformation's matrices are drawn."""
    generator = seeded()
    for probability in (settings.affine, settings.elastic):
        coins(probability, (shape[0],), generator)
    return generator


def test_only_what_falls_true_is_warped_and_the_rest_stays_bit_for_bit() -> None:
    images = torch.rand(40, 1, 6, 6)
    deformation = draw_deformation(AugmentationSettings(affine=0.5), images.shape, seeded())
    assert deformation.warped is not None
    moved, rows = deformation.apply(images), set(deformation.warped.tolist())
    assert 0 < len(rows) < 40
    for number in range(40):
        assert torch.equal(moved[number], images[number]) == (number not in rows)


def test_coins_of_probability_0_draw_nothing_and_of_1_are_all_true() -> None:
    generator = seeded()
    before = generator.get_state()
    assert not coins(0, (5, 2), generator).any()
    assert torch.equal(generator.get_state(), before)
    assert coins(1, (100,), generator).all()
    assert coins(0.3, (10_000,), generator).float().mean().item() == pytest.approx(0.3, abs=0.02)


def test_uniform_numbers_fill_their_interval() -> None:
    numbers = uniform(-3, 5, (10_000,), seeded())
    assert -3 <= numbers.min() < -2.98
    assert 4.98 < numbers.max() <= 5
    assert numbers.mean().item() == pytest.approx(1, abs=0.1)
