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
