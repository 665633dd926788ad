from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.toolbox.streaming_mean import StreamingMean
from support import assert_same, final_tensors, tiny_recipe, tiny_server


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


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedavg_of_a_round_is_the_formula_over_the_sites_models(weighting: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(f"fedavg(weighting={weighting})")
    server = tiny_server(tmp_path / "all", recipe)
    updates = list(server.engine.train(_broadcast(server), server.sites))
    server.round()
    shares = [u.samples if weighting == "samples" else 1 for u in updates]
    for name, tensor in server.state.weights.items():
        if tensor.is_floating_point():
            naive = sum(s * u.weights[name].double() for s, u in zip(shares, updates, strict=True)) / sum(shares)
            torch.testing.assert_close(tensor, naive.float(), rtol=1e-6, atol=1e-8)


def _broadcast(server):  # type: ignore[no-untyped-def]
    from polyclinic.exchange.messages import Broadcast

    return Broadcast(0, server.state.weights)


def test_fedbn_keeps_norms_and_averages_the_rest(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedbn"))
    server.fit()
    found = final_tensors(server)
    norms = server.workspace.network.norm_names()
    assert server.workspace.kept == norms
    assert not {n.removeprefix("global/") for n in found if n.startswith("global/")} & norms
    name = next(n for n in sorted(norms) if n.endswith("weight"))
    assert not torch.equal(found[f"north/personal/{name}"], found[f"south/personal/{name}"])


def test_fedbn_averages_norms_for_unseen_sites_only_when_asked(tmp_path: Path) -> None:
    quiet = tiny_server(tmp_path / "own", tiny_recipe("fedbn"))
    assert quiet.workspace.declared()["local_norm"] == ()
    asked = tiny_server(tmp_path / "unseen", tiny_recipe("fedbn", protocol={"kind": "leave-one-site-out"}))
    asked.round()
    found = final_tensors(asked)
    unseen = asked.checkpoint.load_model("last")[1]
    assert unseen.keys() == asked.workspace.kept
    for name, tensor in unseen.items():
        own = torch.stack([found[f"{site}/personal/{name}"].double() for site in asked.sites])
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, own.mean(0).float(), rtol=1e-6, atol=1e-8)
        else:
            assert torch.equal(tensor, found[f"north/personal/{name}"])


def test_fedbn_warns_when_norms_hold_nothing(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedbn", network={"norm": "batch-nostats"}))
    (warning,) = [w for c in server.workspace.components for w in c.warnings()]
    assert "equals fedavg" in warning


def test_local_exchanges_nothing(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("local"))
    server.fit()
    assert server.state.weights == {}
    found = final_tensors(server)
    assert not torch.equal(found["north/personal/classifier.weight"], found["south/personal/classifier.weight"])


def test_fedavg_with_one_site_is_local_training_bit_for_bit(tmp_path: Path) -> None:
    one = {"north": 4}
    average = tiny_server(tmp_path / "fedavg", tiny_recipe("fedavg"), sizes=one)
    local = tiny_server(tmp_path / "local", tiny_recipe("local"), sizes=one)
    average.fit()
    local.fit()
    personal = local.engine.sites["north"].store.load(before=99).personal  # type: ignore[attr-defined]
    assert_same(average.state.weights, personal)
