from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support import tiny_recipe, tiny_server


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


def test_fsf3a_and_its_uniform_mean_are_the_same_for_sites_of_one_size(tmp_path: Path) -> None:
    """ASWA weighs by samples (eq. 12); what the paper calls FedAvg weighs all alike."""
    for sizes, same in (({"north": 3, "south": 3}, True), ({"north": 5, "south": 3}, False)):
        results = []
        for number, method in enumerate(("fsf3a", "fsf3a(weighting=uniform)")):
            server = tiny_server(tmp_path / f"{number}{same}", tiny_recipe(method), sizes=sizes)
            server.round()
            results.append({n: t for n, t in server.state.weights.items() if t.is_floating_point()})
        assert all(torch.equal(results[0][name], results[1][name]) for name in results[0]) is same
