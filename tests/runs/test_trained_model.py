"""The model of a run; which of its models is the tested one is in the tests of predict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.trained_model import fingerprint, load_model


def test_equal_weights_have_equal_fingerprints_and_others_do_not(finished: Callable[..., Path]) -> None:
    one, again = (load_model(finished(), site=None, part=None, model=None)[0] for _ in range(2))
    assert fingerprint(one) == fingerprint(again)
    with torch.no_grad():
        next(again.network.parameters()).view(-1)[0].add_(1e-6)
    assert fingerprint(one) != fingerprint(again)


def test_a_folder_of_runs_is_told_from_a_run(finished: Callable[..., Path]) -> None:
    parent = finished().parent
    with pytest.raises(
        PolyclinicError, match=f"has no recipe.toml.; give one of the runs in it, such as {finished()}."
    ):
        load_model(parent, site=None, part=None, model=None)


def test_the_device_can_be_another_than_the_recipes(finished: Callable[..., Path]) -> None:
    workspace, _ = load_model(finished(), site=None, part=None, model="last", device="cpu")
    assert workspace.device.type == "cpu"
    with pytest.raises(PolyclinicError, match=r"engine\.device = 'cuda:99' cannot be used here"):
        load_model(finished(), site=None, part=None, model="last", device="cuda:99")
