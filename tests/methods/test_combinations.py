"""Aggregators and corrections go with local methods: a few expressions, each trained for two tiny rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support import Keeper, tiny_recipe, tiny_server


@pytest.mark.parametrize(
    "method",
    [
        "fedbn+scaffold",
        "moon-weighted_mean+fednova",
        "moon+fedma",
        "fedprox+fednova+scaffold",
        "harmofl+scaffold",  # gradients are computed again before they are corrected
        "fedrcl+fedma",
        "fedmix(images=3)+fedrcl+fednova",
        "fedmix(images=3)+weight_perturbation",  # a second pass through the slope
        "fedbcs+scaffold+fednova",
        "fixmatch+scaffold(option=I)",
    ],
)
def test_they_train(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, training={"rounds": 2, "local_epochs": 1, "optimizer": "sgd"})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert all(tensor.isfinite().all() for tensor in server.state.weights.values() if tensor.is_floating_point())
    assert all(torch.tensor(v).isfinite() for e in keeper.events for ts in e["losses"].values() for v in ts.values())
