"""Settings by the images: one rule a key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advice_support import VENTRICLE, VESSELS, VOLUMES
from polyclinic.data.federation_traits import FederationTraits
from polyclinic.preview.advice_settings import settings_for


def keys(traits: FederationTraits, few: bool = False) -> dict[str, str]:
    settings = settings_for(traits, few)
    assert len({setting.key for setting in settings}) == len(settings)
    return {setting.key: setting.value for setting in settings}


def reason(traits: FederationTraits, key: str, few: bool = False) -> str:
    return next(setting.reason for setting in settings_for(traits, few) if setting.key == key)


def test_thin_structures_are_trained_in_patches_and_bulky_ones_in_whole_images() -> None:
    thin = {"training.dice_classes": '"foreground"'}
    assert keys(VESSELS) == {"data.patch": "[96, 96]", "data.foreground": "0.5", **thin}
    assert keys(VENTRICLE) == {"data.size": "[192, 192]"}
    assert keys(replace(VESSELS, size=(64, 64))) == thin, "a patch of a small image is the image"
    assert keys(replace(VENTRICLE, size=(2000, 3000))) == {}


def test_bulky_structures_in_the_middle_ask_for_the_middle_alone() -> None:
    """Rounded up to what four poolings divide, where a good part of the image is left out by it."""
    middle = {"data.crop": "[112, 128]", "data.size": "[112, 128]"}
    assert keys(replace(VENTRICLE, middle=(108, 120))) == middle
    assert keys(replace(VENTRICLE, middle=(170, 170))) == {"data.size": "[192, 192]"}
    large = replace(VENTRICLE, size=(512, 512), middle=(130, 100))
    assert keys(large) == {"data.crop": "[144, 112]", "data.size": "[144, 112]"}
    small = replace(VENTRICLE, middle=(20, 100))
    assert keys(small)["data.crop"] == "[64, 112]", "with what is around them"
    assert "data.crop" not in keys(replace(small, size=(64, 100)))
    assert "data.crop" not in keys(replace(VESSELS, middle=(100, 100))), "thin: patches"
    assert "data.crop" not in keys(replace(VOLUMES, middle=(20, 20, 20)))


def test_the_middle_promises_only_what_it_does() -> None:
    """The batch stays as it is: a step is cheaper, and no step has more images by itself."""
    said = reason(replace(VENTRICLE, middle=(108, 120)), "data.crop")
    assert "nothing is found outside of it" in said
    assert "39% of the work" in said, "112 x 128 of 192 x 192"
    assert "training.batch_size" in said


def test_small_structures_all_over_the_image_are_trained_in_patches() -> None:
    nuclei = replace(VENTRICLE, width=16.0, size=(256, 256), middle=(256, 250))
    assert keys(nuclei) == {"data.patch": "[96, 96]", "data.foreground": "0.5"}
    assert keys(replace(nuclei, width=40.0)) == {"data.size": "[256, 256]"}
    assert keys(replace(nuclei, middle=(200, 200))) == {"data.crop": "[208, 208]", "data.size": "[208, 208]"}


def test_large_volumes_are_trained_in_patches_that_three_poolings_divide() -> None:
    assert keys(VOLUMES) == {}
    wide = keys(replace(VOLUMES, size=(144, 144, 18), anisotropy=5.0))
    assert wide["data.patch"] == "[64, 64, 16]"
    assert wide["network.anisotropic"] == '"auto"'


@pytest.mark.parametrize(("size", "depth"), [((16, 16), "3"), ((12, 40), "2"), ((2, 9), "1"), ((32, 32), None)])
def test_small_images_get_a_network_that_pools_less(size: tuple[int, ...], depth: str | None) -> None:
    assert keys(replace(VESSELS, size=size)).get("network.depth") == depth


def test_mixed_polarity_asks_for_the_range_of_pictures_and_else_for_intensities_of_the_site() -> None:
    mixed = replace(VESSELS, polarity="mixed")
    assert keys(mixed)["data.intensity"] == '"site"'
    assert keys(replace(mixed, pictures=True))["data.intensity"] == '"full-range"'
    assert "data.intensity" not in keys(VESSELS)


def test_sites_of_very_different_size_take_the_same_steps() -> None:
    assert "training.steps_per_epoch" in keys(replace(VESSELS, largest_site=80))
    assert "training.steps_per_epoch" not in keys(replace(VESSELS, largest_site=79))


def test_with_few_labels_every_method_takes_the_same_steps() -> None:
    """Else a method that walks over all images trains many times as long as the bounds do."""
    assert keys(VENTRICLE, few=True)["training.steps_per_epoch"] == "20"
    assert keys(replace(VESSELS, largest_site=800), few=True)["training.steps_per_epoch"] == "20"
    assert "few-labels.md" in reason(VENTRICLE, "training.steps_per_epoch", few=True)
