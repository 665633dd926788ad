from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.aggregation.fedma import FedMa, best_order
from polyclinic.components.base import BuiltMethod, Context
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.channel_groups import channel_groups
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks import build_network
from polyclinic.networks.base import SegmentationNetwork
from polyclinic.recipe import NetworkSettings
from support import Keeper, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task

NORMS = ("instance", "batch", "group", "batch-nostats")


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 3), (6, 2), (4, 1)]), st.integers(0, 10**6))
def test_the_best_order_is_that_of_all_orders_that_keep_blocks_together(shape: tuple[int, int], seed: int) -> None:
    channels, blocks = shape
    gain = torch.randn(channels, channels, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    size, best = channels // blocks, -torch.inf
    for order in permutations(range(channels)):
        together = all(len({order[b * size + i] // size for i in range(size)}) == 1 for b in range(blocks))
        if together:
            best = max(best, sum(gain[i, j].item() for i, j in enumerate(order)))
    ours = best_order(gain, blocks)
    assert sorted(ours.tolist()) == list(range(channels))
    assert gain[torch.arange(channels), ours].sum().item() == pytest.approx(best)


def test_an_order_that_is_as_good_is_left_alone() -> None:
    assert best_order(torch.ones(4, 4, dtype=torch.float64), 4).tolist() == [0, 1, 2, 3]
    assert best_order(torch.zeros(4, 4, dtype=torch.float64), 2).tolist() == [0, 1, 2, 3]


def trained_network(dims: int, norm: str, upsample: str = "deconv", bias: bool = True) -> SegmentationNetwork:
    """Of random weights in all places, those of norms and their statistics among them; anisotropic in 3D."""
    sizes = {"poolings": [[1, 2, 2], [2, 2, 2]], "kernels": [[1, 3, 3], [3, 3, 3], [3, 3, 3]]} if dims == 3 else {}
    chosen = NetworkSettings(width=8, depth=2, norm=norm, upsample=upsample, bias=bias, **sizes)  # type: ignore[call-arg]
    network = build_network(tiny_task(dims), chosen, 0)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in network.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + ("var" in name))
    return network.eval()


def permuted(network: SegmentationNetwork, seed: int) -> Tensors:
    """The same network with its channels in other places."""
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    for group in channel_groups(network):
        size = group.size // group.blocks
        blocks = torch.randperm(group.blocks, generator=generator).tolist()
        group.reorder(weights, torch.cat([size * b + torch.randperm(size, generator=generator) for b in blocks]))
    return weights


def fedma_of(network: SegmentationNetwork, weighting: str = "samples") -> FedMa:
    component = FedMa(FedMa.Settings(weighting=weighting), Context(tiny_task()))
    component.check(BuiltMethod("fedma", False, network, [component], frozenset(network.state_dict()), {}))
    return component


def server_of(network: SegmentationNetwork, previous: Tensors, policy: str = "average") -> ServerRound:
    buffers = frozenset(network.buffer_names())
    return ServerRound(0, 3, network, previous, ("a", "b"), buffers, policy, torch.Generator(), torch.device("cpu"))


@pytest.mark.parametrize("upsample", ["deconv", "linear"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dims", [2, 3])
def test_a_permuted_copy_computes_the_same_and_is_recovered_exactly(dims: int, norm: str, upsample: str) -> None:
    network = trained_network(dims, norm, upsample)
    original = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    images = torch.rand(1, 2, *[8] * dims, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = network(images)
    copies = [permuted(network, seed) for seed in (3, 4)]
    assert any(not torch.equal(copies[0][name], tensor) for name, tensor in original.items())
    network.load_state_dict(copies[0])
    with torch.no_grad():
        torch.testing.assert_close(network(images), wanted, rtol=1e-3, atol=1e-4)
    server = server_of(network, original)
    updates = [Update(site, 0, weights, 3, 2) for site, weights in zip("ab", copies, strict=True)]
    assert_same(fedma_of(network).aggregate(server, updates), original)
    assert all(share > 0.5 for share in server.notes["fedma"]["moved"].values())


def test_small_changes_are_matched_too_and_averaged_by_samples() -> None:
    network = trained_network(2, "batch", bias=False)
    original = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    generator, moved = torch.Generator().manual_seed(5), []
    for seed in (6, 7):
        for tensor in (t for t in network.state_dict().values() if t.is_floating_point()):
            tensor.add_(0.02 * torch.rand(tensor.shape, generator=generator))
        plain = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        moved.append((plain, permuted(network, seed)))
        network.load_state_dict(original)
    updates = [Update(site, 0, pair[1], n, 2) for site, pair, n in zip("ab", moved, (3, 1), strict=True)]
    for weighting, shares in (("samples", (0.75, 0.25)), ("uniform", (0.5, 0.5))):
        ours = fedma_of(network, weighting).aggregate(server_of(network, original), updates)
        for name, tensor in ours.items():
            first, second = (pair[0][name] for pair in moved)
            if tensor.is_floating_point():
                torch.testing.assert_close(tensor, shares[0] * first + shares[1] * second)
    largest = fedma_of(network).aggregate(server_of(network, original, "largest"), updates)
    statistics = [name for name in largest if name.endswith("running_var")]
    assert statistics
    assert all(torch.equal(largest[name], moved[0][0][name]) for name in statistics)


def test_channels_that_change_places_are_said_once() -> None:
    network = trained_network(2, "instance")
    original, component = dict(network.state_dict()), fedma_of(trained_network(2, "instance"))
    sentences: list[str] = []
    for _ in range(2):
        server = server_of(network, original)
        server.warn = sentences.append
        component.aggregate(server, [Update("a", 0, permuted(network, 3), 3, 2), Update("b", 0, original, 3, 2)])
        assert server.notes["fedma"]["moved"]["b"] == 0
    assert len(sentences) == 1
    assert "of the channels of a changed places" in sentences[0]


@pytest.mark.parametrize(
    ("method", "network", "words"),
    [
        ("fedbn+fedma", {}, "adn.N.bias' stays at the sites"),
        ("fedbcs+fedma", {}, "goes with components that put no weights into the network"),
        ("moon+fedma+model_contrast(projection=4)", {}, "'extras.model_contrast.0.bias' is unknown"),
        ("fedma", {"name": "vit", "patch": 4, "embedding": 6, "layers": 1, "mlp": 6}, "take network.name = 'unet'"),
    ],
)
def test_what_it_does_not_cover_is_refused(method: str, network: dict[str, object], words: str) -> None:
    recipe = tiny_recipe(method, network=network)
    with pytest.raises(PolyclinicError, match=words):
        build_workspace(recipe, tiny_task())


def test_sites_that_start_from_one_model_keep_their_order_and_get_fedavg(tmp_path: Path) -> None:
    matched = tiny_server(tmp_path / "fedma", tiny_recipe("fedma"), observer=(keeper := Keeper()))
    plain = tiny_server(tmp_path / "fedavg", tiny_recipe("fedavg"))
    for server in (matched, plain):
        server.fit()
    assert all(not any(event["notes"]["fedma"]["moved"].values()) for event in keeper.events)
    assert_same(final_tensors(matched), final_tensors(plain))


def test_statistics_may_stay_at_the_sites() -> None:
    network = trained_network(2, "batch")
    buffers = network.buffer_names()
    original = {name: tensor for name, tensor in network.state_dict().items() if name not in buffers}
    sent = {name: tensor for name, tensor in permuted(network, 3).items() if name not in buffers}
    assert_same(fedma_of(network).aggregate(server_of(network, original), [Update("a", 0, sent, 3, 2)]), original)
