"""How much memory the training of one site takes, from shapes alone."""

from __future__ import annotations

import copy
from math import prod

import torch
from torch import Tensor, nn

from polyclinic.exchange.messages import tensor_bytes
from polyclinic.federation.workspace import Workspace

_COPIES_OF_WEIGHTS = 6  # weights, gradients, two of Adam, what arrived, what leaves
_PER_ACTIVATION = 2  # an output of a layer is kept for the backward pass, and gets a gradient
_PROCESS = 300 * 10**6  # what a process needs beside that


def training_bytes(workspace: Workspace, spatial: tuple[int, ...]) -> int:
    """About as many bytes as a process needs to train a site on images of ``spatial`` size.

    The outputs of all layers are added up on the meta device, where tensors have a shape and no numbers. Frozen copies
    of the network, as teachers, keep no activations.
    """
    views = 2 if workspace.learns_unlabelled else 1
    shape = (views * workspace.recipe.training.batch_size, workspace.network.channels, *spatial)
    weights = tensor_bytes(dict(workspace.network.state_dict()))
    return _PROCESS + _COPIES_OF_WEIGHTS * weights + _PER_ACTIVATION * _activation_bytes(workspace.network, shape)


def _activation_bytes(network: nn.Module, shape: tuple[int, ...]) -> int:
    sizes: list[int] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:  # noqa: ARG001
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    twin = copy.deepcopy(network).to("meta")
    for module in twin.modules():
        if not any(module.children()):
            module.register_forward_hook(note)
    try:
        with torch.no_grad():
            twin(torch.empty(shape, device="meta"))
    except (NotImplementedError, RuntimeError):
        # A module that looks at numbers: assume what a U-Net of this width keeps at full resolution, twice over.
        return prod(shape) // shape[1] * 4 * 40
    return sum(sizes)
