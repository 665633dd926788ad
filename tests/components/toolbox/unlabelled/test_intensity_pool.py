from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from polyclinic.components.toolbox.unlabelled import intensity_pool as pool


def bytes_of(seed: int, channels: int = 1, low: int = 0, high: int = 256, size: int = 12) -> np.ndarray:
    """A picture ``(size, size, channels)``."""
    return np.random.default_rng(seed).integers(low, high, (size, size, channels)).astype(np.uint8)


def to_tensor(*pictures: np.ndarray) -> torch.Tensor:
    return torch.stack([torch.from_numpy(p.astype(np.float32) / 255).movedim(-1, 0) for p in pictures])


def picture(array: np.ndarray) -> Image.Image:
    return Image.fromarray(array if array.shape[2] == 3 else array[..., 0])


def levels(image: Image.Image) -> torch.Tensor:
    """``(channel, height, width)`` in 0..255."""
    array = np.asarray(image).astype(np.float32)
    return torch.from_numpy(array if array.ndim == 3 else array[..., None]).movedim(-1, 0)


# ---- each operation against Pillow, which the released code calls ----------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_autocontrast_is_that_of_pillow(channels: int) -> None:
    dark, flat = bytes_of(0, channels, 40, 120), np.full((12, 12, channels), 7, np.uint8)
    found = pool.autocontrast(to_tensor(dark, flat), torch.zeros(2)) * 255
    assert (found[0] - levels(ImageOps.autocontrast(picture(dark)))).abs().max() <= 1.01  # Pillow cuts off to bytes
    assert torch.equal(found[1], torch.full_like(found[1], 7))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(2, 6), st.sampled_from([2, 3]), st.integers(0, 10**6))
def test_equalising_counts_the_darker_pixels_of_a_channel(channels: int, size: int, dims: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 8, (2, channels, *[size] * dims), generator=generator)
    found = pool.equalise(values / 255, torch.zeros(2))
    for image, channel in np.ndindex(2, channels):
        here, out = values[image, channel].flatten(), found[image, channel].flatten()
        rest = len(here) - int((here == here.max()).sum())
        for pixel in range(len(here)):
            wanted = int((here < here[pixel]).sum()) / rest if rest else float(here[pixel]) / 255
            assert float(out[pixel]) == pytest.approx(wanted, abs=1e-6)


def test_equalising_is_near_pillow_where_its_integer_step_is_fine() -> None:
    many = bytes_of(3, 1, 60, 110, size=256)
    found = pool.equalise(to_tensor(many), torch.zeros(1))[0] * 255
    assert (found - levels(ImageOps.equalize(picture(many)))).abs().max() <= 2


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["contrast", "brightness", "sharpness", "colour"])
def test_enhancements_are_those_of_pillow(name: str, channels: int) -> None:
    if name == "colour" and channels == 1:
        return
    arrays, strengths = [bytes_of(seed, channels) for seed in (1, 2)], torch.tensor([0.1, 0.8])
    ours = (pool._COLOUR if channels == 3 else pool._POOL)[name]
    theirs = getattr(ImageEnhance, name.capitalize().replace("Colour", "Color"))
    found = ours(to_tensor(*arrays), strengths) * 255
    for number, array in enumerate(arrays):
        wanted = levels(theirs(picture(array)).enhance(0.05 + 0.9 * float(strengths[number])))
        inner = (slice(None), slice(1, -1), slice(1, -1)) if name == "sharpness" else ...
        assert (found[number][inner] - wanted[inner]).abs().max() <= 1.6
        assert found[number].std() < to_tensor(array).std() * 255


@pytest.mark.parametrize(("strength", "bits"), [(0.0, 7), (0.2, 7), (0.3, 6), (0.6, 5), (0.99, 4)])
def test_posterising_drops_bits(strength: float, bits: int) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    found = pool.posterise(to_tensor(every), torch.tensor([strength]))[0] * 255
    torch.testing.assert_close(found, levels(ImageOps.posterize(picture(every), bits)))


@pytest.mark.parametrize(("strength", "threshold"), [(0.0, 255), (0.5, 128), (0.9999, 1)])
def test_solarising_inverts_from_the_threshold_on(strength: float, threshold: int) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    found = pool.solarise(to_tensor(every), torch.tensor([strength]))[0] * 255
    torch.testing.assert_close(found, levels(ImageOps.solarize(picture(every), threshold)))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_hue_turns_and_saturation_and_value_stay(seed: int, strength: float) -> None:
    images = to_tensor(bytes_of(seed, 3, size=3), np.full((3, 3, 3), 90, np.uint8))
    found = pool.hue(images, torch.full((2,), strength))
    torch.testing.assert_close(found[1], images[1])
    for before, after in zip(images[0].flatten(1).T.tolist(), found[0].flatten(1).T.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*before)
        assert after == pytest.approx(colorsys.hsv_to_rgb((hue + strength - 0.5) % 1, saturation, value), abs=1e-4)


def test_the_blur_is_wider_for_a_larger_strength_and_keeps_the_mean() -> None:
    point = torch.zeros(2, 1, 31, 31)
    point[:, :, 15, 15] = 1
    found = pool.soften(point, torch.tensor([0.0, 0.99]))
    torch.testing.assert_close(found.sum((1, 2, 3)), torch.ones(2), atol=1e-3, rtol=0)
    assert found[0, 0, 15, 15] > 0.99 > 0.1 > found[1, 0, 15, 15]


# ---- the whole -------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4), st.integers(1, 4), st.sampled_from([2, 3]), st.booleans(), st.integers(0, 10**6))
def test_any_images_stay_finite_in_their_range_and_type(
    batch: int, channels: int, dims: int, unit: bool, seed: int
) -> None:
    most = 1 + seed % 5
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(batch, channels, *[5] * dims, generator=generator)
    if not unit:
        images = 300 * images - 700
    before = images.clone()
    found = pool.perturb(images, generator, most, colour=channels == 3 and dims == 2, unit=unit)
    assert torch.equal(images, before)
    assert found.shape == images.shape
    assert found.dtype == images.dtype
    assert found.isfinite().all()
    if batch:
        low, high = (0.0, 1.0) if unit else (float(images.min()), float(images.max()))
        assert low - 1e-3 * (high - low) <= found.min()
        assert found.max() <= high + 1e-3 * (high - low)


@pytest.mark.parametrize("colour", [False, True])
def test_without_a_common_scale_a_shift_and_a_factor_change_nothing(colour: bool) -> None:
    images = torch.rand(16, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    # Sixteenths are bytes of every scale's own, so that no rounding tips a bin over.
    images = (images * 15).round() / 15
    images[:, :, 0, 0], images[:, :, 0, 1] = 0, 1
    plain, scored = (
        pool.perturb(one, torch.Generator().manual_seed(5), colour=colour, unit=False)
        for one in (images, 4 * images - 2)
    )
    torch.testing.assert_close(4 * plain - 2, scored, atol=1e-4, rtol=0)
    assert (plain - images).abs().flatten(1).amax(1).gt(1e-3).float().mean() > 0.5


def test_channels_of_different_scales_are_judged_by_their_own() -> None:
    images = torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    pairs = torch.cat([images, 1000 * images + 50], 1)
    found = pool.perturb(pairs, torch.Generator().manual_seed(2), unit=False)
    torch.testing.assert_close(1000 * found[:, :1] + 50, found[:, 1:], atol=0.05, rtol=0)


def test_an_image_of_one_value_gives_finite_numbers_near_it() -> None:
    images = torch.full((32, 2, 4, 4), -3.0)
    found = pool.perturb(images, torch.Generator().manual_seed(0), unit=False)
    assert found.isfinite().all()
    assert ((found + 3).abs() <= 1).all()


def naive_perturb(images: torch.Tensor, generator: torch.Generator, most: int, colour: bool) -> torch.Tensor:
    """Image by image and operation by operation, from the same draws."""
    operations = list((pool._COLOUR if colour else pool._POOL).values())
    counts = torch.randint(1, most + 1, (len(images), 1), generator=generator)
    chosen = torch.randint(len(operations), (len(images), most), generator=generator)
    strengths = torch.rand(len(images), most, generator=generator)
    result = []
    for number, image in enumerate(images):
        current = image.unsqueeze(0)
        for slot in range(int(counts[number])):
            current = operations[int(chosen[number, slot])](current, strengths[number, slot : slot + 1])
        result.append(current)
    return torch.cat(result)


@pytest.mark.parametrize(
    ("shape", "colour"), [((24, 3, 9, 7), True), ((24, 2, 9, 7), False), ((12, 1, 5, 6, 4), False)]
)
def test_a_batch_is_changed_as_its_images_one_by_one(shape: tuple[int, ...], colour: bool) -> None:
    images = torch.rand(shape, generator=torch.Generator().manual_seed(3))
    ours = pool.perturb(images, torch.Generator().manual_seed(4), 3, colour)
    wanted = naive_perturb(images, torch.Generator().manual_seed(4), 3, colour)
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=0)


def test_every_operation_and_every_number_of_them_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, int] = {}

    def counting(name: str) -> pool.Operation:
        def operation(images: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            called[name] = called.get(name, 0) + len(images)
            return images

        return operation

    names = list(pool._COLOUR)
    monkeypatch.setattr(pool, "_COLOUR", {name: counting(name) for name in names})
    pool.perturb(torch.rand(2000, 3, 1, 1), torch.Generator().manual_seed(0), 3, colour=True)
    assert len(names) == 11
    assert called.keys() == set(names) - {"identity"}
    # Two operations on average, each one of eleven.
    assert all(280 < count < 450 for count in called.values()), called


def test_half_precision_is_computed_in_single() -> None:
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = pool.perturb(images, torch.Generator().manual_seed(1))
    wanted = pool.perturb(images.float(), torch.Generator().manual_seed(1))
    assert torch.equal(found, wanted.bfloat16())
