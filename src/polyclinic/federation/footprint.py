"""How much memory the training of one site takes, from shapes alone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from polyclinic.exchange.messages import tensor_bytes
from polyclinic.federation.workspace import Workspace
from polyclinic.networks import SegmentationNetwork

_COPIES_OF_WEIGHTS = 6  # weights, gradients, two of Adam, what arrived, what leaves
_PER_ACTIVATION = 2  # an output of a layer is kept for the backward pass, and gets a gradient
_WITH_MODULES = 1.5  # where what components have put into the network cannot be counted
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


def _activation_bytes(network: SegmentationNetwork, shape: tuple[int, ...]) -> int:
    twin = copy.deepcopy(network).to("meta")
    try:
        return _output_bytes(twin, shape)
    except (NotImplementedError, RuntimeError):  # a component's module that does not work without numbers
        twin.taps = nn.ModuleDict({name: nn.Sequential() for name in twin.taps})
        return int(_WITH_MODULES * _output_bytes(twin, shape))


@torch.no_grad()
def _output_bytes(network: SegmentationNetwork, shape: tuple[int, ...]) -> int:
    sizes: list[int] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:  # noqa: ARG001
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    layers = [module for module in network.modules() if not any(module.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        network(torch.empty(shape, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(sizes)
