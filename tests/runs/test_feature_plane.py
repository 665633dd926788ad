"""The plane against an eigendecomposition of the covariance, the share between sites against sums written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyclinic.runs.feature_plane import Points, between_sites, joint_plane, total_variance


def standardised(cloud: np.ndarray) -> np.ndarray:
    centred = cloud - cloud.mean(0)
    return np.asarray(centred / np.sqrt((centred**2).sum() / len(cloud)))


def test_the_axes_are_the_first_eigenvectors_of_the_joint_covariance() -> None:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(9, 5)) * (5, 3, 1, 1, 1) + 40, rng.normal(size=(7, 5)) * (1, 1, 4, 2, 1)
    both = np.concatenate([standardised(before), standardised(after)])
    values, vectors = np.linalg.eigh(both.T @ both)
    first, second, shares = joint_plane(torch.tensor(before), torch.tensor(after), same_units=False)
    assert shares == pytest.approx([values[-1] / values.sum(), values[-2] / values.sum()])
    found = torch.cat([first, second]).numpy()
    for axis, vector in enumerate((vectors[:, -1], vectors[:, -2])):
        expected = both @ (vector * np.sign(vector[np.abs(vector).argmax()]))
        assert found[:, axis] == pytest.approx(expected)


def test_neither_a_shift_nor_in_other_units_a_scale_moves_a_point() -> None:
    cloud = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).double()
    first, second, _ = joint_plane(cloud, 100 * cloud + 7, same_units=False)
    assert torch.allclose(first, second)
    # In the same units the smaller cloud stays the smaller one.
    first, second, _ = joint_plane(cloud, 100 * cloud + 7, same_units=True)
    assert torch.allclose(100 * first, second)


def test_features_of_a_single_number_and_equal_ones() -> None:
    clouds = torch.tensor([[1.0], [3.0]]).double(), torch.tensor([[5.0], [5.0]]).double()
    for same_units in (False, True):
        first, second, shares = joint_plane(*clouds, same_units)
        assert first.tolist() == [[-1, 0], [1, 0]]
        assert second.tolist() == [[0, 0], [0, 0]]
        assert shares == [1.0, 0.0]
    assert joint_plane(clouds[1], clouds[1], same_units=False)[2] == [0.0, 0.0]


def test_the_total_variance_is_a_mean_squared_distance_and_rounding_is_none() -> None:
    rows = [[1.0, 2.0], [3.0, 8.0], [2.0, 2.0]]
    mean = [sum(column) / 3 for column in zip(*rows, strict=True)]
    naive = sum((value - centre) ** 2 for row in rows for value, centre in zip(row, mean, strict=True)) / 3
    assert total_variance(torch.tensor(rows).double()) == pytest.approx(naive)
    assert total_variance(1 + 1e-7 * torch.randn(6, 3).double()) == 0


def naive_share(points: list[tuple[float, str, str | None]]) -> float:
    """Of features with one number: an adjusted R squared of the sites within classes."""
    within = total = 0.0
    for value, site, name in points:
        of_class = [v for v, _, c in points if c == name]
        of_group = [v for v, s, c in points if (s, c) == (site, name)]
        total += (value - sum(of_class) / len(of_class)) ** 2
        within += (value - sum(of_group) / len(of_group)) ** 2
    groups, classes = {(s, c) for _, s, c in points}, {c for _, _, c in points}
    return max(0.0, 1 - (within / (len(points) - len(groups))) / (total / (len(points) - len(classes))))


def points_of(points: list[tuple[float, str, str | None]]) -> Points:
    vectors = torch.tensor([[value] for value, _, _ in points]).double()
    return Points(vectors, [site for _, site, _ in points], [name for _, _, name in points])


def test_the_share_between_sites_is_an_adjusted_r_squared() -> None:
    rng = np.random.default_rng(1)
    for classes in ((None,), ("disc", "core")):
        points = [
            (float(rng.normal(3 * number + (10 if name == "core" else 0))), site, name)
            for name in classes for number, site in enumerate(("a", "b", "c")) for _ in range(4)
        ]  # fmt: skip
        assert between_sites(points_of(points)) == pytest.approx(naive_share(points))
        assert naive_share(points) > 0.5


def test_classes_far_apart_do_not_count_as_sites() -> None:
    points: list[tuple[float, str, str | None]] = [
        (base + noise, site, name)
        for name, base in (("disc", 0.0), ("core", 1000.0)) for site in "ab" for noise in (0.0, 1.0, 2.0)
    ]  # fmt: skip
    assert between_sites(points_of(points)) == 0


def test_no_share_without_variance_or_repetition() -> None:
    assert between_sites(points_of([(1.0, "a", None), (1.0, "b", None), (1.0, "b", None)])) is None
    assert between_sites(points_of([(1.0, "a", None), (2.0, "b", None)])) is None  # a site has one point each
    assert between_sites(points_of([(1.0, "a", None), (2.0, "a", None)])) is None
