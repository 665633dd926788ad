"""The form for exported graphs is the component's own map, at the size of training and at others."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyclinic.components.images.amplitude_normalisation import AmplitudeWindow
from polyclinic.components.images.plain_amplitude_window import PlainAmplitudeWindow


def learned(window: float, size: tuple[int, ...]) -> AmplitudeWindow:
    torch.manual_seed(0)
    layer = AmplitudeWindow(2, window, 0.1, size)
    layer.learning = True
    layer(torch.rand(3, 2, *size))
    return layer.eval()


@pytest.mark.parametrize("window", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("trained", [(8, 6), (7, 9), (6, 8, 4)])
def test_the_plain_form_gives_the_same_images(window: float, trained: tuple[int, ...]) -> None:
    layer = learned(window, trained)
    plain = layer.for_export()
    assert isinstance(plain, PlainAmplitudeWindow)
    sizes = [trained] if window == 1 else [trained, tuple(n + 3 for n in trained), tuple(n // 2 for n in trained)]
    for size in sizes:
        images = torch.rand(2, 2, *size)
        images[0, 0] = 0  # no coefficient has a phase
        torch.testing.assert_close(plain(images), layer(images), atol=1e-5, rtol=1e-5)
        assert not torch.allclose(plain(images), images, atol=1e-3)


def test_the_whole_spectrum_knows_one_size() -> None:
    plain = learned(1.0, (8, 6)).for_export()
    with pytest.raises(ValueError, match=r"the size \[8, 6\] alone"):
        plain(torch.rand(1, 2, 8, 8))


def test_what_needs_no_transform_stays_and_what_knows_nothing_passes() -> None:
    layer = learned(0.0, (8, 6))
    assert layer.for_export() is layer
    assert isinstance(AmplitudeWindow(2, 0.3, 0.1, (8, 6)).for_export(), nn.Identity)
