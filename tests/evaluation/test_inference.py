from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyclinic.evaluation.inference import predict_probabilities


class Spy(nn.Module):
    """A convolution whose size must be a multiple, and which remembers what it saw."""

    def __init__(self, dims: int = 2, kernel: int = 1, multiple: int = 1) -> None:
        super().__init__()
        convolution = nn.Conv2d if dims == 2 else nn.Conv3d
        self.body = convolution(1, 3, kernel, padding=kernel // 2, padding_mode="replicate")
        self.dropout, self.frozen = nn.Dropout(0.9), nn.BatchNorm1d(1).eval()
        self.multiple, self.seen = multiple, []

    def forward(self, images: Tensor) -> Tensor:
        assert all(size % self.multiple == 0 for size in images.shape[2:])
        assert torch.is_inference_mode_enabled()
        self.seen.append(tuple(images.shape))
        return self.dropout(self.body(images))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def direct(network: Spy, images: Tensor) -> Tensor:
    with torch.no_grad():
        return network.body(images).softmax(1)


@pytest.mark.parametrize("patch", [None, (9, 11), (20, 20)])
def test_whole_images_go_in_batches(patch: tuple[int, int] | None) -> None:
    network, images = Spy(kernel=3), torch.rand(5, 1, 9, 11)
    result = predict_probabilities(network, images, patch, 0.5, batch_size=2)
    torch.testing.assert_close(result, direct(network, images))
    assert [shape[0] for shape in network.seen] == [2, 2, 1]
    assert result.dtype == torch.float32


@pytest.mark.parametrize(
    ("sizes", "patch"), [((13, 17), (8, 8)), ((5, 17), (8, 8)), ((7, 9, 10), (4, 5, 6)), ((7, 9, 10), (7, 9, 6))]
)
def test_windows_of_a_pointwise_network_equal_the_whole(sizes: tuple[int, ...], patch: tuple[int, ...]) -> None:
    network, images = Spy(len(sizes)), torch.randn(2, 1, *sizes)
    result = predict_probabilities(network, images, patch, 0.5, batch_size=4)
    torch.testing.assert_close(result, direct(network, images), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.sum(1), torch.ones(2, *sizes))
    window = tuple(min(pair) for pair in zip(sizes, patch, strict=True))
    assert {shape[2:] for shape in network.seen} == {window}
    assert max(shape[0] for shape in network.seen) == 4


def test_overlapping_windows_are_averaged_with_more_weight_in_their_middle() -> None:
    # Each window says how much it believes in class 1 from its own first column only.
    def network(images: Tensor) -> Tensor:
        first = images[..., :1].expand(images.shape)
        return torch.cat([torch.zeros_like(first), first], dim=1)

    images = torch.zeros(1, 1, 8, 12)
    images[..., 4:] = 3.0
    result = predict_probabilities(network, images, (8, 8), 0.5, 1)[0, 1, 4]
    low, high = 0.5, torch.tensor(3.0).sigmoid().item()
    torch.testing.assert_close(result[:4], torch.full((4,), low))
    torch.testing.assert_close(result[8:], torch.full((4,), high))
    assert (result[4:8].diff() > 0).all()
    assert low < result[4] < result[7] < high


@pytest.mark.parametrize(("multiple", "padded"), [(8, (16, 24)), ((4, 1), (12, 17)), (1, (11, 17))])
def test_sizes_are_padded_to_the_multiple_and_cropped_back(
    multiple: int | tuple[int, int], padded: tuple[int, int]
) -> None:
    network, images = Spy(kernel=3, multiple=8 if multiple == 8 else 1), torch.rand(2, 1, 11, 17)
    result = predict_probabilities(network, images, multiple=multiple)
    assert network.seen == [(2, 1, *padded)]
    # Repeated edges are what the convolution itself pads with, so padding must not show at all.
    torch.testing.assert_close(result, direct(network, images))


def test_windows_are_padded_too() -> None:
    network, images = Spy(multiple=4), torch.rand(1, 1, 5, 20)
    result = predict_probabilities(network, images, (6, 6), 0.25, 3, multiple=4)
    assert {shape[2:] for shape in network.seen} == {(8, 8)}
    torch.testing.assert_close(result, direct(network, images), atol=1e-5, rtol=1e-5)


def test_modes_come_back_even_after_an_error() -> None:
    network = Spy(multiple=2)
    network.train()
    network.frozen.eval()
    predict_probabilities(network, torch.rand(1, 1, 4, 4))
    modes = (network.training, network.body.training, network.dropout.training, network.frozen.training)
    assert modes == (True, True, True, False)
    with pytest.raises(AssertionError):
        predict_probabilities(network, torch.rand(1, 1, 3, 4))
    assert network.dropout.training
    network.eval()
    predict_probabilities(network, torch.rand(1, 1, 4, 4))
    assert not network.dropout.training


@pytest.mark.parametrize("patch", [None, (4, 4)])
def test_the_result_can_enter_a_loss(patch: tuple[int, int] | None) -> None:
    network = Spy()
    target = predict_probabilities(network, torch.rand(1, 1, 6, 6), patch)
    assert not target.requires_grad
    (F.softmax(network.body(torch.rand(1, 1, 6, 6)), 1) * target).sum().backward()
    assert network.body.weight.grad is not None


def test_half_precision_images_and_logits_give_float32() -> None:
    def network(images: Tensor) -> Tensor:
        return torch.cat([images, -images], dim=1).half()

    images = torch.rand(1, 1, 6, 9).half()
    for patch in (None, (4, 4)):
        result = predict_probabilities(network, images, patch)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result[:, :1], (2 * images.float()).sigmoid(), atol=1e-3, rtol=1e-3)
