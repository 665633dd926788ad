from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyclinic.components.toolbox.channel_groups import channel_groups
from polyclinic.components.toolbox.deep_supervision import labels_at, supervised_loss
from polyclinic.components.toolbox.segmentation_loss import segmentation_loss
from polyclinic.networks.unet import UNet
from polyclinic.recipe import PolicySettings, TrainingSettings, UNetSettings
from support import tiny_recipe, tiny_server

TRAINING, POLICIES = TrainingSettings(dice_classes="foreground", dice_over="batch"), PolicySettings()


def unet(deep_supervision: bool = True) -> UNet:
    torch.manual_seed(0)
    return UNet(1, 3, 2, UNetSettings(width=2, depth=4, norm="batch", deep_supervision=deep_supervision))


def test_the_loss_is_the_normalised_sum_over_resolutions() -> None:
    """Weights 1, 1/2, 1/4 over 7/4, and the label of the nearest pixel."""
    network, images, labels = unet(), torch.randn(2, 1, 32, 32), torch.randint(3, (2, 32, 32))
    output = network.features(images)
    expected = 0.0
    for level, name in enumerate(("", "decoder1", "decoder2")):
        maps = output.decoder[3 - level]
        logits = network.extras["deep_supervision"][name](maps) if name else output.logits
        step = 2**level
        coarse = labels[:, step // 2 :: step, step // 2 :: step]
        loss = segmentation_loss(logits, coarse, "dice-ce", "count", "foreground", "batch").item()
        expected += (4 / 7, 2 / 7, 1 / 7)[level] * loss
    found = supervised_loss(network, output, labels, TRAINING, POLICIES)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    own = supervised_loss(network, output, labels, TRAINING, POLICIES, main=torch.tensor(10.0))
    main = segmentation_loss(output.logits, labels, "dice-ce", "count", "foreground", "batch").item()
    assert own.item() == pytest.approx(expected + 4 / 7 * (10 - main), rel=1e-5)
    found.backward()
    gradients = {name: weight.grad for name, weight in network.named_parameters()}
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())


def test_without_heads_it_is_the_loss_of_the_logits() -> None:
    network, images, labels = unet(False), torch.randn(2, 1, 16, 16), torch.randint(3, (2, 16, 16))
    output = network.features(images)
    found = supervised_loss(network, output, labels, TrainingSettings(dice_classes="all"), POLICIES)
    assert torch.equal(found, segmentation_loss(output.logits, labels, dice_classes="all"))


def test_labels_of_odd_sizes_keep_their_values() -> None:
    labels = torch.tensor([[[0, 1, 2, 2, 0]]])
    assert labels_at(labels, (1, 2)).tolist() == [[[1, 2]]]
    assert labels_at(labels, (1, 2)).dtype == labels.dtype


def test_channels_that_change_places_take_the_heads_along() -> None:
    network, images = unet(), torch.randn(1, 1, 32, 32)
    group = next(g for g in channel_groups(network) if any("deep_supervision" in axis.tensor for axis in g.moved))
    before = network.eval().features(images)
    heads = network.extras["deep_supervision"]
    wanted = [heads["decoder1"](before.decoder[2]), heads["decoder2"](before.decoder[1]), before.logits]
    weights = dict(network.state_dict())
    group.reorder(weights, torch.arange(group.size).flip(0))
    network.load_state_dict(weights)
    after = network.features(images)
    found = [heads["decoder1"](after.decoder[2]), heads["decoder2"](after.decoder[1]), after.logits]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_heads_are_trained_and_aggregated(tmp_path: Path) -> None:
    network = {"depth": 3, "norm": "group", "deep_supervision": True}
    recipe = tiny_recipe(network=network, training={"rounds": 1})
    server = tiny_server(tmp_path, recipe)
    before = dict(server.state.weights)
    server.fit()
    name = "extras.deep_supervision.decoder1.weight"
    assert not torch.equal(server.state.weights[name], before[name])
