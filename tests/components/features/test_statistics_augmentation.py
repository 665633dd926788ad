"""FedFA's layer against the equations, image by image and channel by channel."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.features.statistics_augmentation import StatisticsAugmentation
from support import (
    assert_same,
)


def maps(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.5


def layer_for(channels: int, probability: float = 1.0, seed: int | None = None) -> StatisticsAugmentation:
    """A layer in train mode; with a seed, its variances between sites differ from channel to channel."""
    layer = StatisticsAugmentation(channels, probability, 0.99).train()
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        layer.mean_variance.copy_(torch.rand(channels, generator=generator) * 3)
        layer.deviation_variance.copy_(torch.rand(channels, generator=generator) * 3)
    return layer


def drawn(x: torch.Tensor, seed: int) -> torch.Tensor:
    """The numbers of a pass that starts at this seed: one that decides, then two for every image and channel."""
    torch.manual_seed(seed)
    torch.rand(())
    return torch.randn(2, *x.shape[:2])


def naive(x: torch.Tensor, layer: StatisticsAugmentation, noise: torch.Tensor) -> torch.Tensor:
    """The equations, image by image and channel by channel."""
    batch, channels = x.shape[:2]
    means = [[x[b, c].mean() for c in range(channels)] for b in range(batch)]
    spreads = [
        [(((x[b, c] - means[b][c]) ** 2).sum() / x[b, c].numel() + 1e-6).sqrt() for c in range(channels)]
        for b in range(batch)
    ]

    def widths(values: list[list[torch.Tensor]], between: torch.Tensor) -> list[torch.Tensor]:
        kernel = [1 / (1 + 1 / (float(s) + 1e-6)) for s in between]
        found = []
        for c in range(channels):
            middle = sum(values[b][c] for b in range(batch)) / batch
            inside = sum((values[b][c] - middle) ** 2 for b in range(batch)) / (batch - 1) + 1e-6
            gamma = channels * kernel[c] / sum(kernel)
            found.append(((gamma + 1) * inside).sqrt())
        return found

    of_means, of_spreads = widths(means, layer.mean_variance), widths(spreads, layer.deviation_variance)
    rows = []
    for b in range(batch):
        for c in range(channels):
            mean = means[b][c] + float(noise[0, b, c]) * of_means[c]
            spread = torch.clamp(spreads[b][c] + float(noise[1, b, c]) * of_spreads[c], min=0)
            rows.append(spread * (x[b, c] - means[b][c]) / spreads[b][c] + mean)
    return torch.stack(rows).view(x.shape)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(2, 4), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=2, max_size=3), st.integers(0, 1000)
)  # fmt: skip
def test_value_and_gradient_are_those_of_the_equations(batch: int, channels: int, size: list[int], seed: int) -> None:
    layer = layer_for(channels, seed=seed)
    x, other = (maps(batch, channels, *size, seed=seed).requires_grad_() for _ in range(2))
    noise = drawn(x, seed)
    torch.manual_seed(seed)
    result, wanted = layer(x), naive(other, layer, noise)
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)
    slopes = maps(batch, channels, *size, seed=seed + 1)
    (result * slopes).sum().backward()
    (wanted * slopes).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_a_deviation_below_zero_becomes_zero() -> None:
    layer = layer_for(2)
    x = maps(3, 2, 4, 4)
    noise = torch.zeros(2, 3, 2)
    noise[1, 0, 0] = -1000.0
    layer.draws = {3: noise}
    result = layer(x)
    torch.testing.assert_close(result[0, 0], x[0, 0].mean().expand(4, 4))
    torch.testing.assert_close(result[1:], x[1:])
    torch.testing.assert_close(result[0, 1], x[0, 1])


@pytest.mark.parametrize("x", [torch.ones(3, 2, 4, 4), torch.randn(3, 2, 1, 1), torch.zeros(2, 1, 2, 2, 2)])
def test_constant_maps_and_maps_of_one_pixel_stay_finite(x: torch.Tensor) -> None:
    layer = layer_for(x.shape[1])
    x = x.clone().requires_grad_()
    result = layer(x)
    result.square().sum().backward()
    assert result.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("batch", [1, 4])
def test_no_change_and_no_random_number_in_eval_mode(batch: int) -> None:
    layer = layer_for(2).eval()
    before, buffers = torch.get_rng_state(), {n: t.clone() for n, t in layer.state_dict().items()}
    x = maps(batch, 2, 4, 4)
    assert layer(x) is x
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(buffers, dict(layer.state_dict()))


def test_half_precision_is_computed_in_float32() -> None:
    layer = layer_for(2)
    x = maps(3, 2, 4, 4).half()
    torch.manual_seed(0)
    found = layer(x)
    torch.manual_seed(0)
    assert found.dtype == torch.float16
    assert torch.equal(found, layer(x.float()).half())


def test_the_probability_is_that_of_a_layer_and_batch() -> None:
    layer = layer_for(1, 0.5)
    x = maps(2, 1, 2, 2)
    torch.manual_seed(0)
    changed = [layer(x) is not x for _ in range(400)]
    assert 0.42 < sum(changed) / 400 < 0.58


def widths(layer: StatisticsAugmentation) -> torch.Tensor:
    return layer._width(maps(5, len(layer.mean), seed=9), layer.mean_variance)


def test_equal_variances_double_the_variance_and_unequal_ones_share_it_out() -> None:
    layer = layer_for(3)
    inside = maps(5, 3, seed=9).var(0) + 1e-6
    for value in (0.0, 1.0, 7.0):
        layer.mean_variance.fill_(value)
        torch.testing.assert_close(widths(layer), (2 * inside).sqrt(), rtol=1e-5, atol=1e-6)
    layer.mean_variance.copy_(torch.tensor([0.0, 1.0, 3.0]))
    gamma = widths(layer).square() / inside - 1
    torch.testing.assert_close(gamma, torch.tensor([0.0, 0.5, 0.75]).double() * 3 / 1.25, rtol=1e-4, atol=1e-4)


def test_running_statistics_step_by_step_and_only_where_the_layer_acts() -> None:
    layer = layer_for(2, 0.5)
    mean, deviation = torch.zeros(2).double(), torch.ones(2).double()
    torch.manual_seed(1)
    acted = 0
    for number in range(12):
        x = maps(1 if number % 3 == 0 else 3, 2, 4, 4, seed=number)
        state = torch.get_rng_state()
        acts = float(torch.rand(())) < 0.5
        torch.set_rng_state(state)
        result = layer(x)
        acted += acts
        if acts:
            flat = x.flatten(2)
            mean = 0.99 * mean + 0.01 * flat.mean(2).mean(0)
            deviation = 0.99 * deviation + 0.01 * (flat.var(2, correction=0) + 1e-6).sqrt().mean(0)
        assert (result is x) == (not acts or len(x) == 1), "a batch of one has no spread and passes as it is"
        torch.testing.assert_close(layer.mean.double(), mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.deviation.double(), deviation, rtol=1e-5, atol=1e-6)
    assert 2 < acted < 10


def test_passes_of_one_step_share_a_draw_and_count_once() -> None:
    layer = layer_for(2)
    x, shifted = maps(3, 2, 4, 4), maps(3, 2, 4, 4, seed=1)
    layer.draws = {}
    first = layer(x)
    mean = layer.mean.clone()
    assert mean.any()
    assert torch.equal(layer(x), first)
    torch.testing.assert_close(layer(shifted), naive(shifted, layer, layer.draws[3]), rtol=1e-5, atol=1e-5)
    layer(maps(2, 2, 4, 4))
    assert torch.equal(layer.mean, mean)
    layer.draws = {}
    assert not torch.equal(layer(x), first)
    layer.draws = None
    assert not torch.equal(layer(x), layer(x)), "on its own, a layer draws in every pass"


@pytest.mark.parametrize(("momentum", "minimum", "changes"), [(0.0, 3, True), (0.9, 3, True), (0.0, 4, False)])
def test_batches_of_one_weight_settle_at_their_mean(momentum: float, minimum: int, changes: bool) -> None:
    layer = StatisticsAugmentation(2, 1.0, momentum).train()
    layer.begin(evenly=True)
    batches = [maps(1, 2, 4, 4, seed=seed) for seed in range(4)]
    for batch, cases in zip(batches, ({0}, {1}, {2}, {2}), strict=True):
        layer.cases_at_hand = cases
        layer(batch)
    assert not layer.mean.any()
    layer.settle(minimum)
    together = torch.cat(batches).mean((0, 2, 3)).float()
    wanted = (1 - momentum**4) * together if changes else torch.zeros(2)
    torch.testing.assert_close(layer.mean, wanted)
    assert bool((layer.deviation != 1).any()) == changes
