"""The component contract: hooks that do nothing, and strict settings."""

from __future__ import annotations

import ast
import inspect

import pytest
import torch
from pydantic import ValidationError

from polyclinic.components.base import Component, ComponentSettings, Context
from polyclinic.components.registry import components, find_component
from polyclinic.exchange.messages import Update
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.registry import methods
from support import tiny_recipe, tiny_task


class Weighted(Component):
    name = "weighted"
    level = "objective"
    strength = "weight"
    wants_unlabelled = True

    class Settings(ComponentSettings):
        weight: float = 1.0


def built(**chosen: float) -> Weighted:
    return Weighted(Weighted.Settings(**chosen), Context(tiny_task()))


def test_unlabelled_images_are_for_components_that_want_them_and_act() -> None:
    assert built().uses_unlabelled
    assert not built(weight=0).uses_unlabelled
    assert not Component(ComponentSettings(), Context(tiny_task())).uses_unlabelled


@pytest.mark.parametrize("chosen", [{"wieght": 1.0}, {"weight": float("nan")}, {"weight": float("inf")}])
def test_settings_refuse_unknown_keys_and_numbers_that_are_not_finite(chosen: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        built(**chosen)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        built().settings.weight = 2.0


def test_hooks_change_nothing_by_default_and_aggregation_must_be_written() -> None:
    component = built()
    update = Update("north", 0, {"w": torch.ones(1)}, 1, 1)
    assert component.on_update(update) is update
    assert component.screen(None, [update]) == [update]  # type: ignore[arg-type]
    for result in (component.loss(None), component.share(None), component.combine(None, {})):  # type: ignore[arg-type]
        assert result == {}
    with pytest.raises(NotImplementedError, match="weighted does not aggregate"):
        component.aggregate(None, [])  # type: ignore[arg-type]


def test_state_is_an_instances_own() -> None:
    first, second = built(), built()
    first.state["a"] = first.ledger["a"] = torch.ones(())
    assert second.state == second.ledger == {}


# None changes what a round does: warnings before the run, how many bytes a counter has, and a learning rate that a
# longer run has only where it is constant.
KNOW_THE_ROUNDS = {"model_contrast", "localized_contrast", "volume_dice", "consistent_updates", "fednova"}


def test_a_component_that_looks_at_the_number_of_rounds_says_so() -> None:
    """Else a run that is lengthened would silently end unlike one that was as long from the start."""
    looking = set()
    for name, kind in components().items():
        tree = ast.parse(inspect.getsource(inspect.getmodule(kind)))  # type: ignore[arg-type]
        if any(isinstance(node, ast.Attribute) and node.attr in ("progress", "rounds") for node in ast.walk(tree)):
            looking.add(name)
    saying = {name for name, kind in components().items() if kind.depends_on_rounds is not Component.depends_on_rounds}
    assert looking - KNOW_THE_ROUNDS == saying >= {"gaa", "dual_teacher"}


@pytest.mark.parametrize(
    ("name", "chosen", "depends"),
    [
        ("gaa", {}, True),
        ("mean_teacher", {}, True),
        ("mean_teacher", {"ramp": 0}, False),
        ("dual_teacher", {"delta_start": 0.2, "delta_end": 0.2}, False),
        ("class_distillation", {"alpha_start": 1.0}, False),
        ("class_distillation", {}, True),
        ("privacy", {"noise": 1.0}, False),
        ("privacy", {"target_epsilon": 3.0}, True),
        ("weighted_mean", {}, False),
    ],
)
def test_whether_a_component_depends_on_the_number_of_rounds_is_a_matter_of_its_settings(
    name: str, chosen: dict[str, float], depends: bool
) -> None:
    kind = find_component(name)
    assert kind(kind.Settings(**chosen), Context(tiny_task())).depends_on_rounds is depends


def test_components_say_where_they_align_the_features_of_sites() -> None:
    where: dict[str, set[str]] = {}
    for method in methods():
        workspace = build_workspace(tiny_recipe(method), tiny_task())
        modules, declared = set(workspace.network.modules()), workspace.declared()
        for component in workspace.components:
            aligned = component.aligns(workspace.network)
            where.setdefault(component.name, set()).update(one.tap for one in aligned)
            assert {one.tap for one in aligned} <= workspace.network.taps.keys()
            assert {one.module for one in aligned if one.module is not None} <= modules
            # Whoever lets prototypes out draws classes together.
            shares = any(tensor.prototypes for tensor in declared[component.name])
            assert any(one.by_class for one in aligned) == shares, component.name
    assert {name: taps for name, taps in where.items() if taps} == {
        "afa": {"bottleneck"}, "amplitude_normalisation": {"input"}, "cdpa": {"decoder0"},
        "class_prototypes": {"decoder0"}, "cluster_prototypes": {"bottleneck"}, "feature_augmentation": {"bottleneck"},
        "fsr": {"encoder1"}, "local_clusters": {"bottleneck"}, "prototype_contrast": {"decoder0"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [
        "fedavg+cdpa(weight=0)", "fedavg+class_prototypes(weight=0)", "fedavg+cluster_prototypes(weight=0)",
        "fedavg+local_clusters(weight=0)", "fedavg+prototype_contrast(intra_weight=0,inter_weight=0)",
        "fedavg+feature_augmentation(probability=0)", "fedavg+fsr(taps=[])",
    ],
)  # fmt: skip
def test_what_is_switched_off_aligns_nothing(method: str) -> None:
    workspace = build_workspace(tiny_recipe(method), tiny_task())
    assert not any(component.aligns(workspace.network) for component in workspace.components)


def test_a_module_that_acts_in_training_alone_leaves_its_mark_in_the_weights() -> None:
    workspace = build_workspace(tiny_recipe("fedavg+afa(when=train)"), tiny_task())
    (aligned,) = (one for component in workspace.components for one in component.aligns(workspace.network))
    assert aligned.module is None
