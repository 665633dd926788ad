"""The streaming mean against the formula."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.streaming_mean import StreamingMean
from support import assert_same


def models(count: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "weight": torch.randn(3, 2, generator=generator),
            "running_mean": torch.randn(2, generator=generator),
            "num_batches_tracked": torch.tensor(10 * m + 1),
        }
        for m in range(count)
    ]


BUFFERS = frozenset({"running_mean", "num_batches_tracked"})


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=6), st.integers(0, 99))
def test_weighted_mean_is_the_formula(samples: list[int], seed: int) -> None:
    sites = models(len(samples), seed)
    mean = StreamingMean(BUFFERS)
    for model, n in zip(sites, samples, strict=True):
        mean.add(model, float(n), n)
    result = mean.result(sites[0])
    total = sum(samples)
    for name in ("weight", "running_mean"):
        naive = sum(n / total * model[name].double() for model, n in zip(sites, samples, strict=True))
        torch.testing.assert_close(result[name], naive.float(), rtol=1e-6, atol=1e-7)
        assert result[name].dtype == torch.float32
    assert result["num_batches_tracked"].dtype == torch.int64
    assert int(result["num_batches_tracked"]) == 10 * samples.index(max(samples)) + 1


def test_equal_models_give_exactly_that_model() -> None:
    (model,) = models(1)
    mean = StreamingMean(BUFFERS)
    for n in (3, 7, 11):
        mean.add(model, float(n), n)
    assert_same(mean.result({}), model)


def test_largest_takes_buffers_from_the_site_with_most_samples() -> None:
    sites = models(3)
    mean = StreamingMean(BUFFERS, "largest")
    for model, n in zip(sites, (2, 9, 9), strict=True):
        mean.add(model, 1.0, n)
    result = mean.result({})
    assert torch.equal(result["running_mean"], sites[1]["running_mean"])
    assert not torch.equal(result["weight"], sites[1]["weight"])


def test_weights_by_name_and_what_is_missing() -> None:
    sites = models(2)
    mean = StreamingMean()
    mean.add({"weight": sites[0]["weight"]}, {"weight": 0.0}, 1)
    mean.add({"weight": sites[1]["weight"]}, {"weight": 0.0}, 1)
    before = {"weight": torch.full((3, 2), 7.0), "kept": torch.ones(1)}
    assert_same(mean.result(before), before)


def test_the_inputs_are_not_changed() -> None:
    sites = models(2)
    copies = [{n: t.clone() for n, t in model.items()} for model in sites]
    mean = StreamingMean(BUFFERS)
    for model in sites:
        mean.add(model, 2.0, 2)
    mean.result(sites[0])
    for model, copy in zip(sites, copies, strict=True):
        assert_same(model, copy)


def test_a_tensor_of_several_pieces_is_averaged_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    sites = [{"w": torch.randn(2, 2**16 + 9, generator=generator)} for _ in range(3)]
    mean = StreamingMean()
    for model, n in zip(sites, (1, 2, 5), strict=True):
        mean.add(model, float(n), n)
    naive = sum(n * model["w"].double() for model, n in zip(sites, (1, 2, 5), strict=True)) / 8
    assert torch.equal(mean.result({})["w"], naive.float())


def test_models_in_double_precision_or_another_layout_stay_as_they_are() -> None:
    weights = torch.rand(2, 3, 4, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    kept, mean = weights.clone(), StreamingMean()
    for n in (3, 1):
        mean.add({"w": weights}, float(n), n)
    assert torch.equal(weights, kept)
    assert torch.equal(mean.result({})["w"], kept)
