"""A tiny frozen encoder with random weights, and a file of such weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from polyclinic.data.federation import Task
from polyclinic.networks import build_network
from polyclinic.networks.presets import PRESETS, Preset
from polyclinic.networks.pretrained import Pretrained
from polyclinic.recipe import NetworkSettings

RGB = Task(("background", "nucleus"), 3, 2)


TINY = {"name": "pretrained", "model": "tiny", "weights": "random", "width": 2, "norm": "batch"}


HALF = (0.5, 0.5, 0.5)


@pytest.fixture(autouse=True)
def tiny_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transformer with tokens of 4 pixels, so that images of 8 are enough."""
    options = {"patch_size": 4, "img_size": 16, "depth": 2, "embed_dim": 8, "num_heads": 2}
    monkeypatch.setitem(PRESETS, "tiny", Preset("test_vit", HALF, (0.25, 0.5, 1.0), "ask nobody", "deep.", options))


def build(seed: int = 0, task: Task = RGB, **more: Any) -> Pretrained:
    network = build_network(task, NetworkSettings(**{**TINY, **more}), seed)
    assert isinstance(network, Pretrained)
    return network


def encoder_weights(**more: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in build(7, **more).encoder.model.state_dict().items()}


@pytest.fixture
def weights_file(tmp_path: Path) -> Path:
    """Encoder weights under a prefix, beside those of something else, as in CONCH's file."""
    weights = {f"deep.{name}": tensor for name, tensor in encoder_weights().items()}
    save_file({**weights, "text.bias": torch.ones(3)}, tmp_path / "tiny.safetensors")
    return tmp_path / "tiny.safetensors"
