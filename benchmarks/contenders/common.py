"""What all contenders share: the arrays, the network and one site's local training, as one would write them by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from polyclinic.components.toolbox.segmentation_loss import segmentation_loss
from polyclinic.data.federation import Task
from polyclinic.networks import SegmentationNetwork, build_network
from polyclinic.networks.unet import UNet
from polyclinic.recipe import UNetSettings

TASK = Task(("background", "nucleus"), 3, 2)
Weights = dict[str, Tensor]


class Work:
    """``WORK.json``: the folder of the arrays, the sites, and how much training."""

    def __init__(self, path: str) -> None:
        about = json.loads(Path(path).read_text())
        self.folder, self.sites = Path(about["folder"]), list(about["sites"])
        self.rounds, self.batch_size, self.width, self.depth = (
            about[key] for key in ("rounds", "batch_size", "width", "depth")
        )
        torch.set_num_threads(1)

    def network(self) -> SegmentationNetwork:
        return build_network(TASK, UNetSettings(name="unet", width=self.width, depth=self.depth), seed=0)

    def images(self, site: str) -> tuple[Tensor, Tensor]:
        """Images ``(count, channel, row, column)`` in float32 and labels ``(count, row, column)``."""
        arrays = np.load(self.folder / f"{site}.npz")
        return torch.from_numpy(arrays["images"]).float() / 255, torch.from_numpy(arrays["labels"]).long()


class Unet16(UNet):
    """The same network without arguments, for frameworks that build it by its name."""

    def __init__(self) -> None:
        super().__init__(3, 2, 2, UNetSettings(name="unet", width=16, depth=4))


def train(network: SegmentationNetwork, images: Tensor, labels: Tensor, batch_size: int, seed: int) -> None:
    """One local epoch with a new Adam."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    network.train()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    for rows in order.split(batch_size):
        optimizer.zero_grad()
        segmentation_loss(network(images[rows]), labels[rows], "dice-ce", "count").backward()
        optimizer.step()


def work_file() -> str:
    return sys.argv[1]
