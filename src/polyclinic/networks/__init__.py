"""Networks by the name a recipe uses."""

from __future__ import annotations

from collections.abc import Callable

import torch

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.seeds import seed_for
from polyclinic.data.federation import Task
from polyclinic.networks.base import Features, SegmentationNetwork, load_weights, parameter_count
from polyclinic.networks.pretrained import Pretrained
from polyclinic.networks.unet import UNet
from polyclinic.networks.vit import ViT
from polyclinic.recipe import NetworkSettings

__all__ = ["NETWORKS", "Features", "SegmentationNetwork", "build_network", "load_weights", "parameter_count"]

NETWORKS: dict[str, Callable[[int, int, int, NetworkSettings], SegmentationNetwork]] = {
    "unet": UNet,
    "vit": ViT,
    "pretrained": Pretrained,
}


def build_network(task: Task, settings: NetworkSettings, seed: int) -> SegmentationNetwork:
    """Build the network of a recipe with weights that depend on the seed alone."""
    if settings.name not in NETWORKS:
        hint = suggestion(settings.name, NETWORKS) or "."
        raise PolyclinicError(f"network.name = '{settings.name}' is not a network{hint} Known: {', '.join(NETWORKS)}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "network"))
        return NETWORKS[settings.name](task.channels, len(task.classes), task.spatial_dims, settings)
