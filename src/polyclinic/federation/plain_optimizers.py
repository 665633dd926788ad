"""PyTorch's optimisers without PyTorch's compiler.

``torch.optim`` wraps some methods so that ``torch.compile`` leaves them alone, and the first call of any of them
imports the compiler with SymPy, which takes longer than ``import torch``. Nothing here is compiled through an
optimiser; these classes are the same optimisers with the same methods, not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch.optim import Optimizer

_add_param_group: Callable[..., None] = unwrap(Optimizer.add_param_group)
_zero_grad: Callable[..., None] = unwrap(Optimizer.zero_grad)
_sgd_step: Callable[..., Any] = torch.no_grad()(unwrap(torch.optim.SGD.step))
_adam_step: Callable[..., Any] = torch.no_grad()(unwrap(torch.optim.Adam.step))
_adamw_step: Callable[..., Any] = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class _Plain(Optimizer):
    """What all optimisers share."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in PyTorch."""
        _add_param_group(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in PyTorch."""
        _zero_grad(self, set_to_none)


class SGD(_Plain, torch.optim.SGD):
    """Stochastic gradient descent."""

    def step(self, closure: Any = None) -> Any:
        """As in PyTorch."""
        return _sgd_step(self, closure)


class Adam(_Plain, torch.optim.Adam):
    """Adam, with weight decay in the gradient."""

    def step(self, closure: Any = None) -> Any:
        """As in PyTorch."""
        return _adam_step(self, closure)


class AdamW(_Plain, torch.optim.AdamW):
    """Adam, with weight decay apart from the gradient."""

    def step(self, closure: Any = None) -> Any:
        """As in PyTorch."""
        return _adamw_step(self, closure)
