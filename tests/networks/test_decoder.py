from __future__ import annotations

import torch
from torch import Tensor

from polyclinic.data.federation import Task
from polyclinic.networks import build_network
from polyclinic.networks.vit import ViT
from polyclinic.recipe import NetworkSettings

SMALL = {"name": "vit", "width": 2, "patch": 4, "embedding": 12, "layers": 3, "heads": 3, "mlp": 10, "norm": "batch"}


def small(dims: int = 2, seed: int = 0, **more: object) -> ViT:
    network = build_network(Task(("a", "b", "c"), 2, dims), NetworkSettings(**{**SMALL, **more}), seed)
    assert isinstance(network, ViT)
    return network


def test_images_are_padded_at_their_far_edges_and_the_decoder_cuts_the_padding_off() -> None:
    network = small().eval()
    images = torch.rand(1, 2, 6, 8)
    seen: list[Tensor] = []
    raised: list[Tensor] = []
    network.embedding.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    finest = network.decoder[-1]
    finest.upsample.register_forward_hook(lambda _, __, result: raised.append(result))  # type: ignore[union-attr]
    finest.convs.register_forward_pre_hook(lambda _, given: seen.append(given[0]))  # type: ignore[union-attr]
    network(images)
    padded, merged = seen
    assert torch.equal(padded[:, :, :6], images)
    assert torch.equal(padded[:, :, 6:], images[:, :, -1:].expand(-1, -1, 2, -1))
    assert raised[0].shape[2:] == (8, 8)
    assert torch.equal(merged[:, 2:], raised[0][:, :, :6])
