"""One site that multiplies its update, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from polyclinic.components import registry as component_registry
from polyclinic.federation.checkpoint import Checkpoint
from support import call, write_tiny_federation, write_tiny_recipe

MALICIOUS = '''
"""A site that sends its update a hundred times as large, and the other way."""
from dataclasses import replace

from polyclinic.components.base import Component
from polyclinic.components.registry import component


@component
class Malicious(Component):
    """Sends w^r - 100 (w - w^r) from the site c."""

    name = "malicious"
    level = "aggregation"

    def receive(self, site, shared):
        self._received = {n: t.detach().cpu().clone() for n, t in site.received.items()}

    def on_update(self, update):
        if update.site != "c":
            return update
        spoilt = {
            n: self._received[n] - 100 * (t - self._received[n]) if t.is_floating_point() else t
            for n, t in update.weights.items()
        }
        return replace(update, weights=spoilt)
'''


def weights_and_events(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict]]:  # type: ignore[type-arg]
    weights, _, _ = Checkpoint(folder / "checkpoints" / "all").load_model("last")
    (events,) = folder.rglob("events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return weights, [line for line in lines if "notes" in line]


def test_one_site_ruins_the_mean_and_not_the_robust_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(component_registry, "_COMPONENTS", dict(component_registry._COMPONENTS))
    federation = write_tiny_federation(tmp_path / "federation", dict.fromkeys("abcde", 4))
    recipe = write_tiny_recipe(tmp_path / "recipe.toml", federation, rounds=2, local_epochs=1)
    (tmp_path / "malicious.py").write_text(MALICIOUS)
    plugin = f"plugins=[{tmp_path / 'malicious.py'}]"

    def finished(method: str) -> tuple[dict[str, torch.Tensor], list[dict]]:  # type: ignore[type-arg]
        folder = tmp_path / method
        # Without running statistics: their ruined mean would have a negative variance, and training would stop at NaN.
        done = call(
            "run", recipe, "--method", method, "--out", folder, "--set", plugin, "--set", "policies.buffers=keep"
        )
        assert done.code == 0, done.err
        return weights_and_events(folder)

    clean, _ = finished("fedavg")

    def away(weights: dict[str, torch.Tensor]) -> float:
        """How far from a run in which all sites are honest, over the size of its weights."""
        gaps, sizes = ([t.norm() for t in ts] for ts in ([weights[n] - t for n, t in clean.items()], clean.values()))
        return float(torch.stack(gaps).norm() / torch.stack(sizes).norm())

    ruined = away(finished("fedavg+malicious")[0])
    robust = {}
    for name in ("median", "trimmed_mean(trim=0.2)", "krum", "norm_clipping"):
        weights, events = finished(f"fedavg+malicious+{name}")
        robust[name] = away(weights)
        for event in events:
            if name == "krum":
                chosen = event["notes"]["krum"]["chosen"]
                assert sum(chosen.values()) == 1
                assert chosen["c"] == 0
            if name == "norm_clipping":
                factors = event["notes"]["norm_clipping"]["factor"]
                assert min(factors, key=factors.__getitem__) == "c"
                assert factors["c"] < 0.1
    assert ruined > 1
    assert all(gap < ruined / 10 for gap in robust.values()), (ruined, robust)
