"""All networks by the name that a recipe uses, each with its settings class.

A network is one file: a subclass of ``SegmentationNetwork``, registered with ``@network``. A file of a recipe's
``plugins`` may register one too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.memory import enough_memory
from polyclinic.core.once import once
from polyclinic.core.seeds import seed_for, seed_torch
from polyclinic.data.federation import Task
from polyclinic.networks.base import SegmentationNetwork
from polyclinic.recipe import NetworkSettings
from polyclinic.recipe.files import checked_network
from polyclinic.recipe.network import register_settings

BuildNetwork = Callable[[int, int, int, Any], SegmentationNetwork]
"""From the numbers of channels, classes and spatial axes and the network's own settings to a network."""
_Build = TypeVar("_Build", bound=BuildNetwork)

_SIZES = ("width", "depth")  # keys that a network's size depends on most
NETWORKS: dict[str, BuildNetwork] = {}


def network(name: str, settings: type[NetworkSettings]) -> Callable[[_Build], _Build]:
    """Register a network, and the class of the keys that its table ``[network]`` may hold beside ``name``."""

    def register(build: _Build) -> _Build:
        register_settings(name, settings)
        NETWORKS[name] = build
        return build

    return register


@once
def _import_all() -> None:
    """Import every module of this folder, so that a new file needs no list to be put on."""
    import polyclinic.networks as package

    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)


def build_network(task: Task, settings: NetworkSettings, seed: int) -> SegmentationNetwork:
    """Build the network of a recipe with weights that depend on the seed alone."""
    _import_all()
    if settings.name not in NETWORKS:
        hint = suggestion(settings.name, NETWORKS) or "."
        known = ", ".join(sorted(NETWORKS))
        raise PolyclinicError(f"network.name = '{settings.name}' is not a network{hint} Known: {known}.")
    with enough_memory(too_large(settings)), torch.random.fork_rng(devices=[]):
        seed_torch(seed_for(seed, "network"))
        build = NETWORKS[settings.name]
        return build(task.channels, len(task.classes), task.spatial_dims, checked_network(settings))


def too_large(settings: NetworkSettings, where: str = "this machine") -> str:
    """A sentence for a network that no memory can hold."""
    size = "".join(f"network.{key} = {getattr(settings, key)}, " for key in _SIZES if hasattr(settings, key))
    return f"{size}network.name = '{settings.name}': too large for the memory of {where}; give smaller numbers."
