"""Graphs in files: any size where the network allows it, one size where not, a sentence where neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import onnx
import pytest
import torch
from torch import nn

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation
from polyclinic.export import graphs
from polyclinic.export.graphs import PlainModel, require, write_torchscript
from polyclinic.export.plain_network import plain_network
from polyclinic.export.settings import model_settings, size_for_network
from polyclinic.federation.workspace import Workspace, build_workspace
from support import tiny_recipe, tiny_task

# Every component that lives in the network; benchmarks/exports.md has them one by one, and as ONNX.
METHODS = ("fedavg+fsr+afa+feature_augmentation+lddg+amplitude_normalisation(window=0.4)", "harmofl")
VIT = {"name": "vit", "width": 2, "patch": 4, "embedding": 12, "heads": 2, "layers": 2, "mlp": 16}
UNEVEN = {"poolings": [[1, 2, 2], [2, 2, 2]], "kernels": [[1, 3, 3], [3, 3, 3], [3, 3, 3]]}


def plain_model(workspace: Workspace) -> PlainModel:
    with torch.no_grad():
        torch.manual_seed(0)
        for name, tensor in workspace.network.state_dict().items():
            # As after a training: statistics are known, and no weight is at its special first value.
            tensor.copy_(torch.rand_like(tensor) * 0.5 + 0.2) if tensor.is_floating_point() else tensor.fill_(3)
            del name
    settings = model_settings(workspace, Federation("f", workspace.task, {}, Path()))
    return PlainModel(plain_network(workspace.network), 2, size_for_network(settings), settings)


def traced(model: PlainModel, folder: Path) -> Any:
    write_torchscript(model, folder / "model.ts")
    return torch.jit.load(str(folder / "model.ts"))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_torchscript_of_every_component_takes_any_size(method: str, dims: int, tmp_path: Path) -> None:
    workspace = build_workspace(tiny_recipe(method, data={"size": (16,) * dims}), tiny_task(dims))
    model = plain_model(workspace)
    script = traced(model, tmp_path)
    assert model.settings["inference"]["fixed_size"] is None
    for size in ((16, 16, 16), (8, 12, 4)):
        images = torch.rand(3, 2, *size[:dims])
        torch.testing.assert_close(script(images), workspace.network.eval()(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("network", "dims"), [(VIT, 3), (UNEVEN, 3), ({"upsample": "linear"}, 2)])
def test_torchscript_of_other_networks_takes_any_size(network: dict[str, Any], dims: int, tmp_path: Path) -> None:
    recipe = tiny_recipe().model_dump() | {"network": {"width": 2, "depth": 2, **network}}
    if network is VIT:
        recipe["network"].pop("depth")
    workspace = build_workspace(type(tiny_recipe()).model_validate(recipe), tiny_task(dims))
    script = traced(plain_model(workspace), tmp_path)
    images = torch.rand(1, 2, *(16, 8, 12)[:dims])
    torch.testing.assert_close(script(images), workspace.network.eval()(images), atol=1e-4, rtol=1e-4)


def test_a_network_for_one_size_says_so(tmp_path: Path) -> None:
    method = "fedavg+amplitude_normalisation(window=1)"
    workspace = build_workspace(tiny_recipe(method, data={"size": (16, 8)}), tiny_task())
    model = plain_model(workspace)
    script = traced(model, tmp_path)
    assert model.settings["inference"]["fixed_size"] == [16, 8]
    images = torch.rand(3, 2, 16, 8)
    torch.testing.assert_close(script(images), workspace.network.eval()(images), atol=1e-4, rtol=1e-4)


class TakesSizeForConstant(nn.Module):
    """A trace of it is right for one size and wrong for all others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.shape[2])


def test_a_graph_that_is_wrong_at_other_sizes_is_found(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"inference": {"multiples": [4, 4]}}
    with pytest.raises(PolyclinicError, match=r"cannot be written as TorchScript \(the graph gives other numbers"):
        write_torchscript(PlainModel(TakesSizeForConstant(), 2, None, settings), tmp_path / "m.ts")
    assert not list(tmp_path.iterdir())
    write_torchscript(PlainModel(TakesSizeForConstant(), 2, (8, 8), settings), tmp_path / "m.ts")
    assert settings["inference"]["fixed_size"] == [8, 8]


def test_onnx_has_named_axes_of_any_size_and_the_settings_inside(huggingface: Path) -> None:
    graph = onnx.load(huggingface / "model.onnx")
    onnx.checker.check_model(graph)
    (image,), (logits,) = graph.graph.input, graph.graph.output
    assert (image.name, logits.name) == ("image", "logits")
    assert not any(node.domain for node in graph.graph.node)  # nothing but ONNX's own operators
    assert "DFT" not in {node.op_type for node in graph.graph.node}
    axes = image.type.tensor_type.shape.dim
    assert [bool(axis.dim_param) for axis in axes] == [True, False, True, True]
    inside = {prop.key: json.loads(prop.value) for prop in graph.metadata_props if prop.key in ("classes", "inference")}
    settings = json.loads((huggingface / "config.json").read_text())
    assert inside == {"classes": settings["classes"], "inference": settings["inference"]}


def test_no_file_says_where_it_was_made(huggingface: Path, tmp_path: Path) -> None:
    write_torchscript(plain_model(build_workspace(tiny_recipe("fedbcs"), tiny_task())), tmp_path / "model.ts")
    with ZipFile(tmp_path / "model.ts") as archive:
        texts = [archive.read(name) for name in archive.namelist()]
    texts += [path.read_bytes() for path in huggingface.iterdir() if path.is_file()]
    places = [str(Path(graphs.__file__).parent.parent), str(Path(torch.__file__).parent), str(huggingface.parent)]
    for place in places:
        assert not any(place.encode() in text for text in texts)
    assert json.loads(ZipFile(tmp_path / "model.ts").read("archive/extra/model.json"))["channels"] == 2


def test_missing_packages_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(PolyclinicError, match=r"needs onnxscript; install it with: pip install 'polyclinic\[export\]'"):
        require("onnx", "onnxscript", "onnxruntime")
