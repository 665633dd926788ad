from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from polyclinic.data import augmentation as module
from polyclinic.data.augmentation import Augmentation, Intensity, blur, change_contrast, change_gamma
from polyclinic.data.federation import Task
from polyclinic.networks import build_network
from polyclinic.recipe import AugmentationSettings, StrongSettings
from polyclinic.recipe.network import UNetSettings

EVERYTHING = AugmentationSettings(
    flip=0.5, affine=0.7, elastic=0.7, contrast=0.5, brightness=0.5, gamma=0.5, blur=0.5, noise=0.5
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    noise = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(ndimage.gaussian_filter(noise, (0, 0, *[2] * (len(shape) - 2)))).float()


def test_example() -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1, 1, 3, 4, 5)])
def test_everything_off_returns_the_same_tensors_and_draws_nothing(shape: tuple[int, ...]) -> None:
    images, labels, generator = torch.rand(shape), torch.zeros(shape[0], *shape[2:], dtype=torch.int64), seeded()
    before = generator.get_state()
    moved, moved_labels = Augmentation(AugmentationSettings())(images, labels, generator)
    assert moved is images
    assert moved_labels is labels
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("shape", [(2, 2, 5, 8), (2, 1, 3, 4, 5)])
def test_certain_flips_equal_torch_flip(shape: tuple[int, ...]) -> None:
    images = torch.rand(shape)
    labels = torch.randint(0, 4, (shape[0], *shape[2:]))
    moved, moved_labels = Augmentation(AugmentationSettings(flip=1)).geometry(images, labels, seeded())
    axes = tuple(range(2 - len(shape), 0))
    assert torch.equal(moved, images.flip(axes))
    assert torch.equal(moved_labels, labels.flip(axes))


@pytest.mark.parametrize("shape", [(4, 1, 24, 40), (2, 1, 12, 20, 16)])
def test_image_and_label_move_alike(shape: tuple[int, ...]) -> None:
    field = smooth(shape)
    labels = (field[:, 0] > field.std() / 2).long()
    augmentation = Augmentation(AugmentationSettings(flip=0.5, affine=1, elastic=1))
    moved, moved_labels = augmentation.geometry(labels.unsqueeze(1).float(), labels, seeded())
    differ = (moved[:, 0] > 0.5) != moved_labels.bool()
    assert moved_labels.dtype == torch.int64
    assert (moved_labels != labels).float().mean() > 0.05
    assert differ.float().mean() < 0.02
    # The nearest voxel weighs at least 1 / 2^dims in a linear interpolation, so below and above that both must agree.
    least = 0.5 ** (len(shape) - 2) - 1e-3
    assert not (differ & ((moved[:, 0] < least) | (moved[:, 0] > 1 - least))).any()


def test_a_drawn_deformation_moves_a_second_tensor_the_same_way() -> None:
    images = smooth((3, 2, 16, 20))
    augmentation = Augmentation(EVERYTHING)
    deformation = augmentation.draw(images.shape, seeded(5))
    moved, _ = augmentation.geometry(images, None, seeded(5))
    assert torch.equal(deformation.apply(images), moved)
    assert torch.equal(deformation.apply(images[:, 1:]), moved[:, 1:])
    assert torch.equal(deformation.apply(images[:, 0]), moved[:, 0])


@pytest.mark.parametrize("shape", [(6, 2, 9, 12), (5, 1, 6, 7, 8)])
def test_same_seed_same_result_and_other_seed_other_result(shape: tuple[int, ...]) -> None:
    images, labels = smooth(shape), torch.randint(0, 3, (shape[0], *shape[2:]))
    augmentation = Augmentation(EVERYTHING)
    first, again, other = (augmentation(images, labels, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_inputs_are_not_changed() -> None:
    images, labels = torch.rand(4, 1, 8, 8), torch.randint(0, 2, (4, 8, 8))
    kept, kept_labels = images.clone(), labels.clone()
    Augmentation(EVERYTHING)(images, labels, seeded())
    assert torch.equal(images, kept)
    assert torch.equal(labels, kept_labels)


@pytest.mark.parametrize("operation", ["affine", "elastic", "contrast", "brightness", "gamma", "blur", "noise"])
def test_about_the_asked_share_of_samples_changes_each_differently(operation: str) -> None:
    image = smooth((1, 1, 10, 12))
    images = image.repeat(200, 1, 1, 1)
    moved, _ = Augmentation(AugmentationSettings.model_validate({operation: 0.5}))(images, None, seeded())
    changed = [result for result in moved if not torch.equal(result, image[0])]
    assert 70 <= len(changed) <= 130
    assert not any(torch.equal(changed[0], other) for other in changed[1:])


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    batch=st.integers(1, 3),
    channels=st.integers(1, 2),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_any_shape_and_dtype_keeps_shape_dtype_and_classes(
    sizes: list[int], batch: int, channels: int, dtype: torch.dtype, seed: int
) -> None:
    images = torch.rand(batch, channels, *sizes, generator=seeded(seed)).to(dtype)
    labels = torch.randint(0, 3, (batch, *sizes), generator=seeded(seed), dtype=torch.uint8)
    moved, moved_labels = Augmentation(EVERYTHING)(images, labels, seeded(seed))
    assert (moved.shape, moved.dtype) == (images.shape, dtype)
    assert (moved_labels.shape, moved_labels.dtype) == (labels.shape, torch.uint8)
    assert moved.isfinite().all()
    assert set(moved_labels.unique().tolist()) <= set(labels.unique().tolist())


def test_autocast_does_not_coarsen_the_grid() -> None:
    images = smooth((2, 1, 64, 64))
    augmentation = Augmentation(AugmentationSettings(affine=1, elastic=1, blur=1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = augmentation(images, None, seeded())[0]
    assert torch.equal(inside, augmentation(images, None, seeded())[0])


@pytest.mark.parametrize("shape", [(3, 2, 40, 33), (2, 1, 20, 24, 22)])
def test_blur_equals_scipy(shape: tuple[int, ...]) -> None:
    images, sigmas = torch.rand(shape), torch.tensor([0.5, 1.1, 1.5])[: shape[0]]
    result = blur(images, sigmas, 1.5)
    for sample in range(shape[0]):
        for channel in range(shape[1]):
            expected = ndimage.gaussian_filter(
                images[sample, channel].double().numpy(), sigmas[sample].item(), mode="nearest"
            )
            np.testing.assert_allclose(result[sample, channel].numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 2, 5, 6), (2, 1, 3, 4, 5)])
def test_contrast_and_gamma_equal_the_naive_formula(shape: tuple[int, ...]) -> None:
    images, factors = torch.randn(shape), torch.tensor([0.6, 1.0, 1.7])[: shape[0]]
    contrast, gamma = change_contrast(images, factors), change_gamma(images, factors)
    for sample in range(shape[0]):
        for channel in range(shape[1]):
            image, factor = images[sample, channel].double(), factors[sample].double()
            low, high = image.min(), image.max()
            stretched = (image - image.mean()) * factor + image.mean()
            curved = ((image - low) / (high - low)) ** factor * (high - low) + low
            torch.testing.assert_close(contrast[sample, channel].double(), stretched, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(gamma[sample, channel].double(), curved, atol=1e-5, rtol=1e-5)


def test_intensity_keeps_a_flat_image_flat_and_finite() -> None:
    images = torch.full((2, 1, 6, 6), -3.0)
    everything = AugmentationSettings(contrast=1, brightness=1, gamma=1, blur=1, noise=1)
    torch.testing.assert_close(Augmentation(everything).intensity(images, seeded()), images)


def test_brightness_and_noise_are_in_image_standard_deviations_and_not_clipped() -> None:
    images = torch.rand(400, 1, 16, 16) * 10
    deviation = images.std(dim=(2, 3), correction=0)
    noisy = Augmentation(AugmentationSettings(noise=1, noise_strength=0.2)).intensity(images, seeded())
    assert ((noisy - images).std(dim=(2, 3)) / deviation).mean().item() == pytest.approx(0.2, rel=0.02)
    assert noisy.min() < 0
    brighter = Augmentation(AugmentationSettings(brightness=1, brightness_strength=0.3)).intensity(images, seeded())
    shift = brighter - images
    assert shift.flatten(1).std(dim=1).max() < 1e-5
    assert (shift[:, :, 0, 0] / deviation).std().item() == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize("shape", [(5, 2, 6, 7), (3, 1, 4, 5, 3)])
def test_clipping_keeps_every_image_and_channel_in_its_own_range(shape: tuple[int, ...]) -> None:
    """The same random numbers, with and without: clipped is the unclipped image cut off, value by value."""
    images = 3 * smooth(shape) - 1
    changes = AugmentationSettings(contrast=0.7, contrast_range=(0.1, 3.0), brightness=0.7, brightness_strength=1.0)
    plain = Intensity(changes).intensity(images, seeded(3))
    clipped = Intensity(changes.model_copy(update={"clip": True})).intensity(images, seeded(3))
    for image, unclipped, cut in zip(images.flatten(0, 1), plain.flatten(0, 1), clipped.flatten(0, 1), strict=True):
        low, high = min(image.flatten().tolist()), max(image.flatten().tolist())
        wanted = [min(max(value, low), high) for value in unclipped.flatten().tolist()]
        torch.testing.assert_close(cut.flatten(), torch.tensor(wanted))
    assert not torch.equal(plain, clipped)


def changed_share(norm: str, strong: StrongSettings) -> float:
    """The share of pixels, without margins, whose logits a strong view moves by over a quarter of their spread."""
    images = smooth((6, 1, 64, 64))
    settings = UNetSettings.model_validate({"width": 8, "depth": 2, "norm": norm})
    network = build_network(Task(("background", "thing"), 1, 2), settings, seed=0)
    with torch.no_grad():
        for _ in range(60 if norm == "batch" else 0):  # running statistics
            network(images)
        views = (images, Intensity(strong).intensity(images, seeded()))
        inner = [network.eval()(view)[..., 12:-12, 12:-12] for view in views]
    plain, changed = (logits[:, 1] - logits[:, 0] for logits in inner)
    return float(((plain - changed).abs() > 0.25 * plain.std()).float().mean())


def test_the_default_strong_view_survives_instance_norm_and_contrast_alone_does_not() -> None:
    affine = StrongSettings(clip=False, gamma=0, blur=0, noise=0)
    assert changed_share("batch", affine) > 0.3
    assert changed_share("instance", affine) < 0.05
    assert changed_share("instance", StrongSettings()) > 0.3
    assert changed_share("instance", StrongSettings(blur=0)) > 0.3
    assert changed_share("instance", affine.model_copy(update={"clip": True})) > 0.08
