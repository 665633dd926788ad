from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from polyclinic.core.errors import PolyclinicError
from polyclinic.networks.presets import PRESETS
from support import assert_same
from tiny_encoders import build, encoder_weights


def test_chiefs_old_names_are_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The published file is of timm 0.5, where a stage ended with the downsampling that now begins the next one."""
    chief = PRESETS["chief"]
    small = {**chief.options, "embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2)}
    monkeypatch.setitem(PRESETS, "chief", replace(chief, options=small))
    weights = encoder_weights(model="chief")
    old = {
        re.sub(r"layers\.(\d)\.downsample", lambda found: f"layers.{int(found[1]) - 1}.downsample", name): tensor
        for name, tensor in weights.items()
    }
    assert old.keys() != weights.keys()
    old["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.int64)
    save_file(old, tmp_path / "chief.safetensors")
    network = build(model="chief", weights=str(tmp_path / "chief.safetensors"), norm="group")
    assert_same(weights, network.encoder.model.state_dict())
    features = network.features(torch.rand(1, 3, 72, 64))
    assert [f.shape[2] for f in features.encoder] == [72, 24, 12, 6, 3]


def test_the_weights_of_the_file_are_in_the_encoder(weights_file: Path, tmp_path: Path) -> None:
    assert_same(encoder_weights(), build(3, weights=str(weights_file)).encoder.model.state_dict())
    bare = {**encoder_weights(), "head.weight": torch.ones(2, 8)}
    save_file(bare, tmp_path / "bare.safetensors")
    assert_same(encoder_weights(), build(4, weights=str(tmp_path / "bare.safetensors")).encoder.model.state_dict())


def test_positions_for_another_size_are_resampled(tmp_path: Path) -> None:
    weights = encoder_weights()
    prefix = weights["pos_embed"].shape[1] - 16
    constant = torch.full((1, prefix + 36, 8), 0.5)
    save_file({**weights, "pos_embed": constant}, tmp_path / "larger.safetensors")
    found = build(weights=str(tmp_path / "larger.safetensors")).encoder.model.state_dict()
    assert torch.allclose(found["pos_embed"], torch.full((1, prefix + 16, 8), 0.5), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": None}, r"needs network\.model: conch, chief, or a timm model"),
        ({"model": "resnet81"}, r"'resnet81' is neither conch, chief.* nor a model of timm, did you mean 'resnet1"),
        (
            {"model": "conch", "weights": None},
            r"not set: conch .* huggingface\.co/MahmoodLab/CONCH.* convert it to",
        ),
        ({"model": "chief", "weights": None}, r"not set: chief .* github\.com/hms-dbmi/CHIEF.* convert it to safetens"),
        (
            {"model": "test_resnet", "weights": None},
            r"model\.safetensors of huggingface\.co/timm/test_resnet.*name",
        ),
        (
            {"model": "conch", "weights": "no/conch.safetensors"},
            r"no such file at /.*no/conch\.safetensors; ask for",
        ),
        ({"model": "convit_tiny"}, "timm gives no intermediate features of it; choose another"),
        (
            {"model": "fixed"},
            r"cannot be used as an encoder for images of any size \(Input height \(8\) doesn't",
        ),
    ],
)
def test_what_cannot_be_an_encoder_gets_a_sentence(
    settings: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = replace(PRESETS["tiny"], options={**PRESETS["tiny"].options, "dynamic_img_size": False})
    monkeypatch.setitem(PRESETS, "fixed", fixed)
    with pytest.raises(PolyclinicError, match=sentence):
        build(**settings)


def test_a_file_of_something_else_gets_a_sentence(weights_file: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "tiny.bin"
    pickled.write_bytes(weights_file.read_bytes())
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no tensors")
    less = {name: tensor for name, tensor in encoder_weights().items() if "blocks.1" not in name}
    save_file(less, tmp_path / "less.safetensors")
    save_file({**encoder_weights(), "norm.weight": torch.ones(5)}, tmp_path / "wrong.safetensors")
    for path, sentence in (
        (pickled, "only safetensors files are read; convert it"),
        (broken, "not a readable safetensors file"),
        (tmp_path / "less.safetensors", r"12 of \d+ weights of tiny are missing, 'blocks\.1\.norm1\.weight' first"),
        (tmp_path / "wrong.safetensors", r"'norm\.weight' has shape \(5,\), tiny needs \(8,\)"),
    ):
        with pytest.raises(PolyclinicError, match=sentence):
            build(weights=str(path))
