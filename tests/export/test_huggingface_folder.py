"""The folder for the hub: its head is YAML that the hub's own library reads, its weights are the network's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file

from polyclinic.export.huggingface_folder import front_matter
from polyclinic.runs.predict import load_model

HOSTILE = 'a"b: [c]\n---\n<script>'


def head(text: str) -> dict[str, Any]:
    assert text.startswith("---\n")
    return dict(yaml.safe_load(text.split("\n---\n")[0].removeprefix("---\n")))


def test_the_head_of_the_readme_has_the_results_of_every_site(huggingface: Path, everything: Path) -> None:
    found = head((huggingface / "README.md").read_text())
    summary = json.loads((everything / "summary.json").read_text())
    assert found["pipeline_tag"] == "image-segmentation"
    assert found["library_name"] == "onnx"
    assert found["license"] == "unknown"
    (index,) = found["model-index"]
    for result, (site, values) in zip(index["results"], summary["sites"].items(), strict=True):
        assert result["dataset"]["name"].endswith(f"test images of {site}")
        dice = next(metric for metric in result["metrics"] if metric["type"] == "dice")
        assert dice["value"] == pytest.approx(values["dice"], abs=1e-6)


def test_the_hubs_library_reads_the_card(huggingface: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard((huggingface / "README.md").read_text())
    assert card.data.model_name == "segmentation of disc"
    assert {result.metric_type for result in card.data.eval_results} >= {"dice", "hd95"}


def test_weights_and_configuration_are_those_of_the_run(huggingface: Path, everything: Path) -> None:
    workspace, _ = load_model(everything, site=None, part=None, model=None)
    weights = load_file(huggingface / "model.safetensors")
    assert weights.keys() == workspace.network.state_dict().keys()
    for name, tensor in workspace.network.state_dict().items():
        torch.testing.assert_close(weights[name], tensor)
    with safe_open(huggingface / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    config = json.loads((huggingface / "config.json").read_text())
    assert config["network"]["name"] == "unet"
    assert config["classes"] == ["background", "disc"]
    assert "weights" not in config["network"]


def test_hostile_names_stay_text(finished: Callable[..., Path]) -> None:
    workspace, _ = load_model(finished(), site=None, part=None, model=None)
    values = {"dice": 0.5, "hd95": None, "asd": float("nan")}
    found = head(front_matter(workspace, {"sites": {HOSTILE: values}, "federation": HOSTILE}))
    (result,) = found["model-index"][0]["results"]
    assert [metric["type"] for metric in result["metrics"]] == ["dice"]
    assert "<script>" in result["dataset"]["name"]
    assert "model-index" not in head(front_matter(workspace, {}))
