from __future__ import annotations

import pytest
import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.networks import build_network, load_weights
from polyclinic.networks.base import fresh_values, without_statistics
from polyclinic.recipe import NetworkSettings

RGB = Task(("background", "nucleus"), 3, 2)


def test_norm_layers_are_found_by_type() -> None:
    network = build_network(RGB, NetworkSettings(width=4, depth=1, norm="batch"), 0)
    norms, buffers = network.norm_names(), network.buffer_names()
    assert len(norms) == 6 * 5
    assert buffers < norms
    assert {n.rpartition(".")[2] for n in buffers} == {"running_mean", "running_var", "num_batches_tracked"}
    plain = build_network(RGB, NetworkSettings(width=4, depth=1, norm="batch-nostats"), 0)
    assert not plain.norm_names()


def test_loading_copies_into_the_network_and_keeps_what_is_not_named() -> None:
    network = build_network(RGB, NetworkSettings(width=2, depth=1), 0)
    pointer, bias = network.classifier.weight.data_ptr(), network.classifier.bias.clone()
    load_weights(network, {"classifier.weight": torch.ones_like(network.classifier.weight)})
    assert network.classifier.weight.data_ptr() == pointer
    assert bool((network.classifier.weight == 1).all())
    assert torch.equal(network.classifier.bias, bias)
    with pytest.raises(KeyError):
        load_weights(network, {"nothing": torch.ones(1)})
    for shape in ((1, 1, 1, 1), (2, 2, 1, 1, 1), (1, 2, 2, 1, 1)):
        with pytest.raises(PolyclinicError, match=r"'classifier.weight' came with shape .*, expected \(2, 2, 1, 1\)"):
            load_weights(network, {"classifier.weight": torch.zeros(shape)})
    assert bool((network.classifier.weight == 1).all())


def test_extra_passes_leave_no_trace_in_the_statistics() -> None:
    network = build_network(RGB, NetworkSettings(width=2, depth=1, norm="batch"), 0).train()
    images = torch.rand(2, 3, 8, 8)
    before = {n: t.clone() for n, t in network.state_dict().items()}
    expected = network(images)
    assert not all(torch.equal(t, network.state_dict()[n]) for n, t in before.items())
    load_weights(network, before)
    with without_statistics(network):
        assert torch.equal(network(images), expected)
    assert all(torch.equal(t, network.state_dict()[n]) for n, t in before.items())
    network(images)
    assert not all(torch.equal(t, network.state_dict()[n]) for n, t in before.items())


def test_fresh_values_are_those_of_a_new_layer_and_touch_nothing_else() -> None:
    network = build_network(RGB, NetworkSettings(width=2, depth=1, norm="batch"), 0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    norm = next(name for name in network.norm_names() if name.endswith("running_var")).rpartition(".")[0]
    wanted = {f"{norm}.running_var", "classifier.weight"}
    with torch.no_grad():
        network.get_buffer(f"{norm}.running_var").fill_(7)
    fresh_values(network, wanted, seed=1)
    after = network.state_dict()
    assert bool((after[f"{norm}.running_var"] == 1).all())
    assert not torch.equal(after["classifier.weight"], before["classifier.weight"])
    layers = (f"{norm}.", "classifier.")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if not name.startswith(layers))
    again = after["classifier.weight"].clone()
    fresh_values(network, wanted, seed=1)
    assert torch.equal(network.state_dict()["classifier.weight"], again)


def test_rows_of_a_pass_are_the_pass_of_a_part() -> None:
    network = build_network(RGB, NetworkSettings(width=2, depth=2), 0).eval()
    images = torch.rand(3, 3, 8, 8)
    part, alone = network.features(images).rows(slice(1, 3)), network.features(images[1:])
    for first, second in zip(
        [*part.encoder, *part.decoder, part.logits], [*alone.encoder, *alone.decoder, alone.logits], strict=True
    ):
        assert torch.allclose(first, second, atol=1e-6)
