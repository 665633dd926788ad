"""Optimisers of the recipe, and optimiser state as named tensors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from polyclinic.federation.optimizers import build_optimizer, optimizer_tensors, restore_optimizer
from polyclinic.recipe import TrainingSettings


@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.0), ("adamw", 0.0)])
def test_optimiser_state_survives_as_named_tensors(kind: str, momentum: float) -> None:
    wanted = TrainingSettings(optimizer=kind, momentum=momentum, lr=0.1)  # type: ignore[arg-type]

    def steps(first: int, second: int) -> Tensor:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(3))
        names = {"layer.weight": weight}
        optimizer = build_optimizer(names, wanted)
        for count in (first, second):
            for _ in range(count):
                optimizer.zero_grad()
                (weight.sin().sum() * 3).backward()
                optimizer.step()
            saved = {n: t.clone() for n, t in optimizer_tensors(optimizer, names).items()}
            optimizer = build_optimizer(names, wanted)
            restore_optimizer(optimizer, names, saved)
        return weight.detach()

    assert torch.equal(steps(5, 0), steps(2, 3))


@pytest.mark.parametrize(("kind", "cls"), [("sgd", "SGD"), ("adam", "Adam"), ("adamw", "AdamW")])
def test_the_recipes_values_reach_the_optimiser(kind: str, cls: str) -> None:
    wanted = TrainingSettings(optimizer=kind, lr=0.3, momentum=0.8, betas=(0.5, 0.6), weight_decay=0.01)  # type: ignore[arg-type]
    optimizer = build_optimizer({"w": nn.Parameter(torch.ones(1))}, wanted)
    assert type(optimizer).__name__ == cls
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.3, 0.01)
    assert group["momentum"] == 0.8 if kind == "sgd" else group["betas"] == (0.5, 0.6)


def test_state_of_a_parameter_whose_name_has_dots_and_slashes_keeps_its_owner() -> None:
    parameters = {"block/0.conv.weight": nn.Parameter(torch.ones(2)), "block/0.conv.bias": nn.Parameter(torch.ones(1))}
    optimizer = build_optimizer(parameters, TrainingSettings(optimizer="adam"))
    sum(parameter.sum() for parameter in parameters.values()).backward()  # type: ignore[union-attr]
    optimizer.step()
    tensors = optimizer_tensors(optimizer, parameters)
    assert {name.rpartition("/")[0] for name in tensors} == set(parameters)
    assert {name.rpartition("/")[2] for name in tensors} == {"step", "exp_avg", "exp_avg_sq"}
    fresh = build_optimizer(parameters, TrainingSettings(optimizer="adam"))
    restore_optimizer(fresh, parameters, tensors)
    assert optimizer_tensors(fresh, parameters).keys() == tensors.keys()


@pytest.mark.parametrize(("kind", "momentum"), [("sgd", 0.9), ("adam", 0.0), ("adamw", 0.0)])
def test_the_fused_step_is_pytorchs_own_but_for_the_last_digits(kind: str, momentum: float) -> None:
    """And it does not depend on where in memory a tensor begins: states come from files at any address."""
    wanted = TrainingSettings(optimizer=kind, momentum=momentum, lr=0.1, weight_decay=0.01)  # type: ignore[arg-type]
    plain = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    own = {"momentum": momentum} if kind == "sgd" else {"betas": wanted.betas}

    def trained(offset: int, fused: bool) -> Tensor:
        weight = nn.Parameter(torch.zeros(40)[offset : offset + 37].copy_(torch.linspace(-2, 2, 37)))
        optimizer = (
            build_optimizer({"w": weight}, wanted)
            if fused
            else plain([weight], lr=0.1, weight_decay=0.01, foreach=False, **own)
        )
        for _ in range(4):
            optimizer.zero_grad()
            weight.sin().square().sum().backward()
            optimizer.step()
        return weight.detach()

    assert torch.equal(trained(0, True), trained(3, True))
    assert torch.allclose(trained(0, True), trained(0, False), rtol=1e-5, atol=1e-6)


def test_state_is_saved_in_the_usual_layout_and_restored_in_that_of_the_weight() -> None:
    """A fused step goes over weight and state as they lie in memory, whatever their shapes say."""
    wanted = TrainingSettings(optimizer="adam", lr=0.1)

    def trained(layout: torch.memory_format, restored: bool) -> Tensor:
        values = torch.linspace(-1, 1, 48).view(2, 3, 2, 4)
        names = {"w": nn.Parameter(values.to(memory_format=layout, copy=True))}
        optimizer = build_optimizer(names, wanted)
        for number in range(4):
            optimizer.zero_grad()
            (names["w"].sin() * torch.arange(48.0).view(2, 3, 2, 4)).sum().backward()
            optimizer.step()
            if restored and number == 1:
                saved = optimizer_tensors(optimizer, names)
                assert all(tensor.is_contiguous() for tensor in saved.values())
                optimizer = build_optimizer(names, wanted)
                restore_optimizer(optimizer, names, saved)
        return names["w"].detach()

    expected = trained(torch.contiguous_format, restored=False)
    torch.testing.assert_close(trained(torch.channels_last, restored=True), expected)
