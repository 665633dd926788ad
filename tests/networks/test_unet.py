from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.networks import build_network, parameter_count
from polyclinic.recipe import NetworkSettings, UNetSettings

RGB = Task(("background", "nucleus"), 3, 2)


def test_parameter_counts_are_those_of_the_papers_networks() -> None:
    """FedBCS's U-Net without FSR and fusion, and PathFL's as deduced from its Table 10."""
    fedbcs = NetworkSettings(width=32, depth=4, norm="batch-nostats", bias=False)
    assert parameter_count(build_network(RGB, fedbcs, 0)) == 7_757_186
    pathfl = NetworkSettings(width=32, depth=3, norm="group", upsample="linear")
    assert parameter_count(build_network(RGB, pathfl, 0)) == 1_949_730


@pytest.mark.parametrize("norm", ["instance", "batch", "group", "batch-nostats"])
@pytest.mark.parametrize("dims", [2, 3])
def test_one_pass_gives_pyramid_decoder_and_logits(norm: str, dims: int) -> None:
    network = build_network(Task(("a", "b", "c"), 2, dims), NetworkSettings(width=4, depth=2, norm=norm), 0)
    images = torch.rand(2, 2, *[16] * dims)
    features = network.features(images)
    assert [f.shape[1] for f in features.encoder] == [4, 8, 16]
    assert [f.shape[2] for f in features.encoder] == [16, 8, 4]
    assert [f.shape[1] for f in features.decoder] == [8, 4]
    assert [f.shape[2] for f in features.decoder] == [8, 16]
    assert features.logits.shape == (2, 3, *[16] * dims)
    network.eval()
    features = network.features(images)
    again = network.head(network.decode(network.encode(images))[-1])
    assert torch.equal(features.logits, again)
    assert torch.equal(network(images), again)


def test_strides_and_kernels_follow_the_axes() -> None:
    task, sizes = Task(("a", "b"), 1, 3), {"width": 2, "depth": 2}
    poolings, kernels = [[1, 2, 2], [2, 2, 2]], [[1, 3, 3], [1, 3, 3], [3, 3, 3]]
    network = build_network(task, NetworkSettings(**sizes, poolings=poolings, kernels=kernels), 0)
    assert network.multiples == (2, 4, 4)
    features = network.features(torch.rand(2, 1, 6, 8, 12))
    assert [tuple(f.shape[2:]) for f in features.encoder] == [(6, 8, 12), (6, 4, 6), (3, 2, 3)]
    assert [tuple(f.shape[2:]) for f in features.decoder] == [(6, 4, 6), (6, 8, 12)]
    found = {name: tuple(w.shape[2:]) for name, w in network.state_dict().items() if "conv_0.conv.weight" in name}
    assert list(found.values()) == [(1, 3, 3), (1, 3, 3), (3, 3, 3), (1, 3, 3), (1, 3, 3)]
    plain, same = (
        build_network(task, NetworkSettings(**sizes, **chosen), 0).state_dict()
        for chosen in ({}, {"poolings": [[2] * 3] * 2, "kernels": [[3] * 3] * 3})
    )
    assert plain.keys() == same.keys() == network.state_dict().keys()
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    with pytest.raises(PolyclinicError, match=r"network\.poolings has 3 numbers in an entry, and the task is 2D"):
        build_network(RGB, NetworkSettings(**sizes, poolings=poolings), 0)


@settings(deadline=None, max_examples=15)
@given(st.integers(9, 40), st.integers(9, 40), st.sampled_from(["deconv", "linear"]))
def test_sizes_need_not_divide(height: int, width: int, upsample: str) -> None:
    network = build_network(RGB, NetworkSettings(width=2, depth=2, upsample=upsample), 0)
    assert network(torch.rand(1, 3, height, width)).shape == (1, 2, height, width)


def test_every_weight_is_in_exactly_one_stage_with_taps_and_extras() -> None:
    network = build_network(RGB, NetworkSettings(width=4, depth=2, norm="batch"), 0)
    network.insert("encoder1", "scale", torch.nn.BatchNorm2d(8))
    network.insert("input", "scale", torch.nn.BatchNorm2d(3))
    network.extras["projection"] = torch.nn.Linear(3, 3)
    stages = network.stages()
    names = [name for stage in stages.values() for name in stage]
    assert sorted(names) == sorted(network.state_dict())
    assert list(stages) == ["encoder0", "encoder1", "bottleneck", "decoder1", "decoder0", "head"]
    assert "taps.encoder1.scale.weight" in stages["encoder1"]
    assert all(stages.values())


@pytest.mark.parametrize("tap", ["input", "encoder0", "encoder1", "bottleneck", "decoder1", "decoder0"])
def test_a_module_at_a_tap_acts_in_the_forward_pass(tap: str) -> None:
    class Zero(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.shape[1])
            return x * 0

    seen: list[int] = []
    network = build_network(RGB, NetworkSettings(width=4, depth=2), 0)
    images = torch.rand(1, 3, 16, 16)
    before = network(images)
    network.insert(tap, "zero", Zero())
    assert not torch.equal(before, network(images))
    assert seen == [network.widths[tap]]
    with pytest.raises(ValueError, match="no tap 'encodr1' in this network, did you mean 'encoder1'"):
        network.insert("encodr1", "zero", Zero())


@pytest.mark.parametrize("dims", [2, 3])
def test_the_last_activation_changes_the_features_of_the_classifier_alone(dims: int) -> None:
    """The other features are those of ``none`` with ReLU, or leaky ReLU, behind; and no weight has another name."""
    task, images = Task(("a", "b", "c"), 2, dims), torch.randn(2, 2, *[16] * dims)
    networks = {
        last: build_network(task, UNetSettings(width=4, depth=2, last_activation=last), 0)  # type: ignore[arg-type]
        for last in ("same", "leaky-relu", "none")
    }
    found = {last: network.features(images) for last, network in networks.items()}
    plain = found["none"].decoder[-1]
    assert plain.min() < 0
    assert torch.equal(found["same"].decoder[-1], plain.relu())
    assert torch.equal(found["leaky-relu"].decoder[-1], F.leaky_relu(plain, 0.1))
    for last, network in networks.items():
        assert network.state_dict().keys() == networks["same"].state_dict().keys()
        assert torch.equal(found[last].decoder[0], found["same"].decoder[0])
        assert torch.equal(found[last].logits, network.head(found[last].decoder[-1]))


@pytest.mark.parametrize(("last", "passes"), [("same", False), ("leaky-relu", True), ("none", True)])
def test_where_relu_lets_no_gradient_through_the_others_do(last: str, passes: bool) -> None:
    """The state in which runs were stuck: all last features off, so that all logits are the classifier's biases."""
    settings = UNetSettings(width=4, depth=2, last_activation=last)  # type: ignore[arg-type]
    network = build_network(Task(("a", "b", "c"), 2, 2), settings, 0)
    norm = network.get_submodule("decoder.1.convs.conv_1.adn.N")
    assert isinstance(norm, torch.nn.InstanceNorm2d)
    with torch.no_grad():
        norm.weight.fill_(0.1)
        norm.bias.fill_(-5.0)
    F.cross_entropy(network(torch.randn(2, 2, 16, 16)), torch.ones(2, 16, 16, dtype=torch.long)).backward()
    assert norm.bias.grad is not None
    assert bool(norm.bias.grad.abs().sum() > 0) == passes
