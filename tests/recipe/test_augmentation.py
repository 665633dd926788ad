from __future__ import annotations

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe import AugmentationSettings, StrongSettings
from polyclinic.recipe.files import make_recipe


@pytest.mark.parametrize("table", ["augmentation", "strong"])
@pytest.mark.parametrize("key", ["contrast_range", "gamma_range", "blur_sigma"])
def test_a_range_rises_from_low_to_high(table: str, key: str) -> None:
    with pytest.raises(PolyclinicError, match=rf"{table}\.{key}: \[1\.5, 0\.5\] must rise from low to high"):
        make_recipe({"federation": "demo:nuclei", table: {key: [1.5, 0.5]}})
    point = make_recipe({"federation": "demo:nuclei", table: {key: [0.5, 0.5]}})
    assert getattr(getattr(point, table), key) == (0.5, 0.5)


@pytest.mark.parametrize("key", ["flip", "affine", "elastic"])
def test_images_move_as_soon_as_one_geometric_probability_is_above_0(key: str) -> None:
    assert AugmentationSettings.model_validate({key: 0.01}).moves


def test_intensity_alone_moves_nothing() -> None:
    assert not AugmentationSettings().moves
    assert not AugmentationSettings(contrast=1, brightness=1, gamma=1, blur=1, noise=1).moves


@pytest.mark.parametrize(
    "settings",
    [{"flip": 1.1}, {"noise": -0.1}, {"scaling": 1.0}, {"elastic_grid": 1}, {"blur_sigma": [0, 1]}, {"rotation": -5}],
)
def test_numbers_without_a_meaning_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(PolyclinicError, match=f"augmentation.{next(iter(settings))}"):
        make_recipe({"federation": "demo:nuclei", "augmentation": settings})


def test_the_strong_view_is_stronger_by_default() -> None:
    weak, strong = AugmentationSettings(), StrongSettings()
    assert (weak.contrast, weak.brightness, weak.blur) == (0, 0, 0)
    assert min(strong.contrast, strong.brightness, strong.blur) >= 0.5
    assert strong.geometry


def test_contrast_and_brightness_are_affine_unless_they_are_clipped() -> None:
    assert StrongSettings().affine_changes == ()
    assert StrongSettings(clip=False).affine_changes == ("contrast", "brightness")
    assert StrongSettings(clip=False, contrast=0, gamma=1).affine_changes == ("brightness",)
    assert AugmentationSettings(gamma=1, blur=1, noise=1).affine_changes == ()
