"""How much memory the training of one site takes, from one pass over a small image."""

from __future__ import annotations

import copy
from math import prod

import torch
from torch import Tensor, nn

from polyclinic.exchange.messages import tensor_bytes
from polyclinic.federation.workspace import Workspace
from polyclinic.networks import SegmentationNetwork

_COPIES_OF_WEIGHTS = 6  # weights, gradients, two of Adam, what arrived, what leaves
_PER_ACTIVATION = 2  # an output of a layer is kept for the backward pass, and gets a gradient
_WITH_MODULES = 1.5  # where what components have put into the network does not take the small image
_PROCESS = 300 * 10**6  # what a process needs beside that


def training_bytes(workspace: Workspace, spatial: tuple[int, ...]) -> int:
    """About as many bytes as a process needs to train a site on images of ``spatial`` size.

    The outputs of all layers are added up for a small image, and grow with the number of pixels. Shapes alone, on
    PyTorch's meta device, would give the same number, but that imports PyTorch's compiler, which takes seconds. Frozen
    copies of the network, as teachers, keep no activations.
    """
    views = 2 if workspace.learns_unlabelled else 1
    shape = (views * workspace.recipe.training.batch_size, workspace.network.channels, *spatial)
    weights = tensor_bytes(dict(workspace.network.state_dict()))
    return _PROCESS + _COPIES_OF_WEIGHTS * weights + _PER_ACTIVATION * _activation_bytes(workspace.network, shape)


def inference_bytes(workspace: Workspace, batch: int, spatial: tuple[int, ...]) -> int:
    """At most about as many bytes as a process needs for one pass over ``batch`` images or windows of ``spatial`` size.

    As if every output of a layer were kept; what is freed on the way depends on the network.
    """
    weights = tensor_bytes(dict(workspace.network.state_dict()))
    return _PROCESS + weights + _activation_bytes(workspace.network, (batch, workspace.network.channels, *spatial))


def _activation_bytes(network: SegmentationNetwork, shape: tuple[int, ...]) -> int:
    twin = copy.deepcopy(network).cpu().eval()
    # Two pixels along each axis of the deepest map, because norms need more than one.
    small = (1, shape[1], *(min(size, 2 * step) for size, step in zip(shape[2:], network.multiples, strict=True)))
    growth = prod(shape) / prod(small)
    try:
        return int(growth * _output_bytes(twin, small))
    except (RuntimeError, ValueError, AssertionError):  # a component's module that was made for one size
        twin.taps = nn.ModuleDict({name: nn.Sequential() for name in twin.taps})
        return int(growth * _WITH_MODULES * _output_bytes(twin, small))


@torch.no_grad()
def _output_bytes(network: SegmentationNetwork, shape: tuple[int, ...]) -> int:
    sizes: list[int] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:  # noqa: ARG001
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    layers = [module for module in network.modules() if not any(module.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.random.fork_rng(devices=[]):  # whatever a module draws, the run must not miss it
            network(torch.zeros(shape))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(sizes)
