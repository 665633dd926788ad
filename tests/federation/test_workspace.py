"""The workspace: which weights stay and which travel, and components that are lent to one site after another."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.federation.workspace import build_workspace, choose_device, describe_components
from polyclinic.methods.expression import parse_method
from polyclinic.networks import build_network
from polyclinic.recipe.files import load_recipe, make_recipe
from support import assert_same, tiny_recipe, tiny_server, tiny_task

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def names(pattern: str) -> list[str]:
    """The project's recipes whose names fit."""
    return sorted(path.name for path in RECIPES.glob(f"{pattern}.toml"))


def test_every_weight_either_stays_or_travels() -> None:
    for method in ("fedavg", "fedbn", "local"):
        workspace = build_workspace(tiny_recipe(method), tiny_task())
        assert workspace.kept.isdisjoint(workspace.exchanged)
        assert workspace.kept | workspace.exchanged == set(workspace.network.state_dict())
    assert workspace.exchanged == set(), "local exchanges nothing"
    buffers = build_workspace(tiny_recipe(policies={"buffers": "keep"}), tiny_task())
    assert buffers.kept == set(buffers.network.buffer_names()) != set()


def test_a_method_and_a_network_that_are_there_already_are_used() -> None:
    recipe, task = tiny_recipe("fedbcs"), tiny_task()
    method, network = parse_method(recipe.method), build_network(task, recipe.network, recipe.seed)
    workspace, expected = build_workspace(recipe, task, method, network), build_workspace(recipe, task)
    assert workspace.method is method
    assert workspace.network is network
    assert_same(dict(network.state_dict()), dict(expected.network.state_dict()))


def test_components_of_a_site_leave_no_trace_at_the_next_one() -> None:
    workspace = build_workspace(tiny_recipe("moon"), tiny_task())
    first = workspace.fresh_components({"model_contrast": {"old": torch.ones(1)}})
    contrast = next(component for component in first if component.name == "model_contrast")
    assert contrast.state.keys() == {"old"}
    contrast.state["new"] = contrast.ledger["count"] = torch.ones(1)
    assert all(not component.state and not component.ledger for component in workspace.fresh_components({}))


def test_loading_starts_from_the_initial_kept_weights_and_copies_are_independent() -> None:
    workspace = build_workspace(tiny_recipe("fedbn"), tiny_task())
    name = next(name for name in sorted(workspace.kept) if name.endswith("weight"))
    workspace.load({name: torch.full_like(workspace.initial_kept[name], 7.0)})
    changed = workspace.kept_weights()
    assert set(changed[name].tolist()) == {7.0}
    workspace.load(workspace.initial_exchanged)
    assert_same(workspace.kept_weights(), workspace.initial_kept)
    assert set(changed[name].tolist()) == {7.0}


@pytest.mark.parametrize(
    ("method", "norm", "strong", "warned"),
    [
        ("fixmatch", "instance", {"clip": False}, "strong.contrast and strong.brightness hardly change"),
        ("fixmatch", "instance", {"clip": False, "contrast": 0}, "strong.brightness hardly change"),
        ("fixmatch", "instance", {}, None),
        ("fixmatch", "batch", {"clip": False}, None),
        ("fixmatch(weight=0)", "instance", {"clip": False}, None),
        ("fedavg", "instance", {"clip": False}, None),
    ],
)
def test_a_strong_view_that_the_norm_takes_back_is_said(
    method: str, norm: str, strong: dict[str, object], warned: str | None
) -> None:
    warnings = build_workspace(tiny_recipe(method, network={"norm": norm}, strong=strong), tiny_task()).warnings()
    found = [warning for warning in warnings if "strong." in warning]
    assert len(found) == (1 if warned else 0)
    assert all(warning.startswith(warned or "") for warning in found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((recipe, ["fsr"]) for recipe in names("fedbcs-*")),  # section 4.2 of the paper names instance norm
        *((recipe, []) for recipe in names("pathfl-*")),
    ],
)
def test_a_recipe_of_a_paper_is_told_only_what_holds_for_it(name: str, said: list[str]) -> None:
    recipe = load_recipe(RECIPES / name, ["network.width=2"])
    warnings = build_workspace(recipe, Task(("background", "structure"), 3, 2)).warnings()
    assert [warning.partition(":")[0] for warning in warnings] == said


def test_a_method_without_gain_under_the_defaults_says_so_in_short_sentences() -> None:
    warnings = build_workspace(make_recipe({"federation": "memory", "method": "pathfl+fsr"}), tiny_task()).warnings()
    assert [warning.partition(":")[0] for warning in warnings] == ["cse", "afa", "fsr"]
    assert all(len(warning) < 210 and warning.count("\n") == 0 for warning in warnings)
    assert build_workspace(make_recipe({"federation": "memory", "method": "fedavg"}), tiny_task()).warnings() == []


def test_a_device_that_is_not_there_gets_a_sentence() -> None:
    with pytest.raises(PolyclinicError, match=r"engine\.device = 'cuda:77' cannot be used here .*try 'cpu' or 'auto'"):
        choose_device("cuda:77")
    assert choose_device("cpu").type == "cpu"


def test_components_are_described_with_their_settings() -> None:
    described = describe_components(build_workspace(tiny_recipe("fedprox(mu=0.5)"), tiny_task()))
    assert [entry["component"] for entry in described] == ["weighted_mean", "proximal"]
    assert described[1]["settings"] == {"mu": 0.5}


@pytest.mark.parametrize("dims", [2, 3])
def test_channels_last_changes_the_layout_and_nothing_else(dims: int, tmp_path: Path) -> None:
    """Over several rounds with an optimiser that remembers; what leaves the network is laid out as always."""
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    weights = {}
    for last in (False, True):
        recipe = tiny_recipe(training={"optimizer": "sgd", "momentum": 0.9}, engine={"channels_last": last})
        server = tiny_server(tmp_path / str(last), recipe, dims, {"north": 3, "south": 2})
        server.fit()
        weights[last] = server.state.weights
        maps = {n: t for n, t in server.workspace.network.state_dict().items() if t.ndim == dims + 2}
        assert all(t.is_contiguous(memory_format=layout) for t in maps.values()) == last
        twin = copy.deepcopy(server.workspace.network).state_dict()
        assert all(twin[name].stride() == tensor.stride() for name, tensor in maps.items())
    assert all(tensor.is_contiguous() for tensor in weights[True].values())
    for name, tensor in weights[False].items():
        torch.testing.assert_close(weights[True][name], tensor, rtol=1e-4, atol=1e-5)
