"""Optimisers and learning rates from the recipe; optimiser state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyclinic.exchange.messages import Tensors
from polyclinic.federation.plain_optimizers import SGD, Adam, AdamW
from polyclinic.recipe import TrainingSettings


def build_optimizer(parameters: dict[str, nn.Parameter], settings: TrainingSettings) -> Optimizer:
    """The recipe's optimiser over named parameters.

    On the CPU one kernel goes over each weight and its state once, where PyTorch's default goes over them six times
    with a call for each: a tenth to a quarter of the time of Adam's step. Its results depend on no address and on no
    number of threads. Elsewhere PyTorch chooses.
    """
    values = list(parameters.values())
    fused = True if all(value.device.type == "cpu" for value in values) else None
    decay = settings.weight_decay
    if settings.optimizer == "sgd":
        return SGD(values, settings.lr, momentum=settings.momentum, weight_decay=decay, fused=fused)
    kind = Adam if settings.optimizer == "adam" else AdamW
    return kind(values, settings.lr, betas=settings.betas, weight_decay=decay, fused=fused)


def optimizer_tensors(optimizer: Optimizer, parameters: dict[str, nn.Parameter]) -> Tensors:
    """The optimiser's memory as ``<parameter>/<what>`` tensors."""
    tensors: Tensors = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensor = value if isinstance(value, Tensor) else torch.tensor(value)
                tensors[f"{name}/{key}"] = tensor.detach().cpu().contiguous()
    return tensors


def restore_optimizer(optimizer: Optimizer, parameters: dict[str, nn.Parameter], tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` took out; on the CPU the tensors themselves become the optimiser's."""
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition("/")
        parameter = parameters[name]
        optimizer.state[parameter][key] = tensor if key == "step" else _like(parameter, tensor)


def _like(parameter: nn.Parameter, tensor: Tensor) -> Tensor:
    """A tensor on a parameter's device and in its layout: a fused step goes over both as they lie in memory."""
    tensor = tensor.to(parameter.device)
    if tensor.shape != parameter.shape or tensor.stride() == parameter.stride():
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)
