"""Training without exchange."""

from __future__ import annotations

from pathlib import Path

import torch

from support import assert_same, final_tensors, tiny_recipe, tiny_server


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
