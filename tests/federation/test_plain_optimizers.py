"""The optimisers take PyTorch's steps and never import its compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyclinic.federation import plain_optimizers

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.9), "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.01}),
    ("AdamW", {"lr": 0.1, "foreach": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("Adam", {"lr": 0.1, "fused": True}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.01, "fused": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("Adam", {"lr": 0.1, "fused": True}),
    ("AdamW", {"lr": 0.1, "fused": True}),
]


def walk(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> list[Tensor]:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]
    optimizer = kind(weights[:1], **options)
    optimizer.add_param_group({"params": weights[1:], "lr": 0.01})
    for _ in range(3):
        optimizer.zero_grad()
        assert weights[0].grad is None
        sum(weight.sin().sum() for weight in weights).backward()  # type: ignore[union-attr]
        optimizer.step()
    states = [value for weight in weights for value in optimizer.state[weight].values() if value is not None]
    return [weight.detach() for weight in weights] + states


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_the_steps_are_those_of_pytorch(name: str, options: dict[str, Any]) -> None:
    mine = walk(getattr(plain_optimizers, name), options)
    theirs = walk(getattr(torch.optim, name), options)
    assert len(mine) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_a_closure_is_called_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = plain_optimizers.SGD([weight], lr=0.5)

    def closure() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = (weight**2).sum()
        loss.backward()
        return loss.detach()

    assert float(optimizer.step(closure)) == 2.0
    assert torch.equal(weight.detach(), torch.zeros(2))


def test_no_step_imports_the_compiler() -> None:
    code = f"""
import sys, torch
from polyclinic.federation import plain_optimizers
for name, options in {KINDS!r}:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = getattr(plain_optimizers, name)([weight], **options)
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
