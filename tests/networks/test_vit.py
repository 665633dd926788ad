from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyclinic.components.toolbox.stage_similarity import stage_outputs
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.networks import build_network
from polyclinic.networks.vit import PatchEmbedding, TransformerBlock, ViT, layer_ends
from polyclinic.recipe import NetworkSettings
from polyclinic.recipe.files import make_recipe
from support import Interrupted, Keeper, Killer, assert_same, final_tensors, tiny_recipe, tiny_server

RGB = Task(("background", "nucleus"), 3, 2)
SMALL = {"name": "vit", "width": 2, "patch": 4, "embedding": 12, "layers": 3, "heads": 3, "mlp": 10, "norm": "batch"}


def small(dims: int = 2, seed: int = 0, **more: object) -> ViT:
    network = build_network(Task(("a", "b", "c"), 2, dims), NetworkSettings(**{**SMALL, **more}), seed)
    assert isinstance(network, ViT)
    return network


def test_the_transformer_has_the_size_of_pathfls() -> None:
    """Six heads, eight layers, MLP 1536; Table 10 has 15.12 million with a decoder that the paper does not describe."""
    network = build_network(RGB, NetworkSettings(name="vit"), 0)
    parts = {"embedding", "blocks", "norm"}
    count = sum(p.numel() for name, p in network.named_parameters() if name.split(".")[0] in parts)
    layer = 4 * (384 * 384 + 384) + (384 * 1536 + 1536) + (1536 * 384 + 384) + 4 * 384
    assert count == 8 * layer + (3 * 16 * 16 + 1) * 384 + 14 * 14 * 384 + 2 * 384
    assert 14.5e6 < count < 15.12e6
    assert [block.heads for block in network.blocks] == [6] * 8  # type: ignore[union-attr]


@pytest.mark.parametrize("upsample", ["deconv", "linear"])
@pytest.mark.parametrize("norm", ["instance", "batch", "group", "batch-nostats"])
@pytest.mark.parametrize("dims", [2, 3])
def test_one_pass_gives_pyramid_decoder_and_logits(norm: str, dims: int, upsample: str) -> None:
    network = small(dims, norm=norm, width=4, upsample=upsample)
    images = torch.rand(2, 2, *[8] * dims)
    features = network.features(images)
    assert [tuple(f.shape) for f in features.encoder] == [(2, c, *[n] * dims) for c, n in ((4, 8), (8, 4), (16, 2))]
    assert [tuple(f.shape) for f in features.decoder] == [(2, c, *[n] * dims) for c, n in ((8, 4), (4, 8))]
    assert features.logits.shape == (2, 3, *[8] * dims)
    assert list(network.widths.values()) == [2, 4, 8, 16, 8, 4]
    network.eval()
    assert torch.equal(network(images), network.features(images).logits)


@settings(deadline=None, max_examples=15)
@given(st.integers(5, 21), st.integers(5, 21), st.sampled_from(["deconv", "linear"]))
def test_sizes_need_not_divide(height: int, width: int, upsample: str) -> None:
    network = small(upsample=upsample, norm="group")
    assert network(torch.rand(1, 2, height, width)).shape == (1, 3, height, width)


def test_attention_and_mlp_are_those_of_the_paper() -> None:
    """Dosovitskiy et al., eqs. 2, 3 and 5 to 8, head by head."""
    torch.manual_seed(0)
    block = TransformerBlock(12, 3, 10, 0.0)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)

    def naive(tokens: Tensor) -> Tensor:
        z = F.layer_norm(tokens, (12,), block.norm1.weight, block.norm1.bias)
        heads = []
        for head in range(3):
            q, k, v = (
                z @ block.qkv.weight[part * 12 + head * 4 :][:4].T + block.qkv.bias[part * 12 + head * 4 :][:4]
                for part in range(3)
            )
            heads.append((q @ k.transpose(1, 2) / 4**0.5).softmax(2) @ v)
        tokens = tokens + torch.cat(heads, 2) @ block.out.weight.T + block.out.bias
        z = F.layer_norm(tokens, (12,), block.norm2.weight, block.norm2.bias)
        return tokens + block.mlp.linear2(F.gelu(block.mlp.linear1(z)))

    tokens = torch.randn(2, 5, 12, requires_grad=True)
    assert torch.allclose(block(tokens), naive(tokens), atol=1e-5)
    direction = torch.randn(2, 5, 12)
    inputs = [tokens, *block.parameters()]
    ours, theirs = (torch.autograd.grad((one(tokens) * direction).sum(), inputs) for one in (block, naive))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))


def test_dropout_acts_in_training_alone() -> None:
    block = TransformerBlock(12, 3, 10, 0.5)
    tokens = torch.rand(1, 4, 12)
    assert not torch.equal(block(tokens), block(tokens))
    block.eval()
    assert torch.equal(block(tokens), block(tokens))


@pytest.mark.parametrize("dims", [2, 3])
def test_positions_are_added_as_learned_or_interpolated(dims: int) -> None:
    embedding = PatchEmbedding(1, 2, 2, dims)
    grid = 14 if dims == 2 else 6
    nn.init.zeros_(embedding.projection.weight)
    nn.init.zeros_(embedding.projection.bias)
    same = embedding(torch.rand(1, 1, *[2 * grid] * dims))
    assert torch.equal(same, embedding.positions.flatten(2).transpose(1, 2))
    # Positions that rise along the last axis: a grid of half the size holds the means of neighbours.
    rising = torch.arange(grid).float().expand(1, 2, *[grid] * dims)
    embedding.positions.data.copy_(rising)
    half = embedding(torch.rand(1, 1, *[grid] * dims)).transpose(1, 2).unflatten(2, [grid // 2] * dims)
    expected = (torch.arange(grid // 2) * 2 + 0.5).expand(1, 2, *[grid // 2] * dims)
    assert torch.allclose(half, expected, atol=1e-5)
    wide = embedding(torch.rand(1, 1, *[2 * grid] * (dims - 1), 4 * grid))
    assert wide.shape == (1, grid ** (dims - 1) * 2 * grid, 2)


def test_layers_are_spread_evenly_over_the_levels() -> None:
    assert layer_ends(8, 4) == [2, 4, 6, 8]
    assert layer_ends(12, 4) == [3, 6, 9, 12]
    assert layer_ends(2, 4) == [1, 1, 2, 2]
    assert layer_ends(5, 2) == [3, 5]


def with_parts(network: ViT) -> ViT:
    network.insert("encoder1", "scale", nn.BatchNorm2d(4))
    network.insert("input", "scale", nn.BatchNorm2d(2))
    network.extras["projection"] = nn.Linear(3, 3)
    return network


def test_every_weight_is_in_exactly_one_stage_with_taps_and_extras() -> None:
    network = with_parts(small(layers=5))
    stages = network.stages()
    assert sorted(name for names in stages.values() for name in names) == sorted(network.state_dict())
    blocks = [f"block{number}" for number in range(5)]
    deep = ["bottleneck", "decoder1", "decoder0", "head"]
    assert list(stages) == ["encoder0", "embedding", *blocks, "encoder1", *deep]
    assert all(stages.values())
    assert {name.split(".")[0] for name in stages["embedding"]} == {"embedding"}
    assert {name.split(".")[1] for name in stages["block3"]} == {"3"}
    assert "norm.weight" in stages["bottleneck"]
    assert list(small(patch=2, layers=1).stages()) == ["encoder0", "embedding", "block0", *deep[::2], "head"]


STAGES = ["encoder0", "embedding", "block0", "block4", "encoder1", "encoder2", "bottleneck", "decoder0", "head"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_changes_its_own_output_and_none_before_it(stage: str) -> None:
    network = small(patch=8, layers=5).eval()
    order = list(network.stages())
    images = torch.rand(1, 2, 16, 16)

    def outputs(one: ViT) -> dict[str, Tensor]:
        return stage_outputs(one, images, order)

    before, changed = outputs(network), copy.deepcopy(network)
    with torch.no_grad():
        for name in network.stages()[stage]:
            if changed.state_dict()[name].is_floating_point():
                changed.state_dict()[name].add_(0.1 * torch.rand_like(changed.state_dict()[name]))
    after = outputs(changed)
    assert all(torch.equal(before[name], after[name]) for name in order[: order.index(stage)])
    assert not torch.allclose(before[stage], after[stage])


@pytest.mark.parametrize("tap", ["input", "encoder0", "encoder1", "bottleneck", "decoder1", "decoder0"])
def test_a_module_at_a_tap_acts_in_the_forward_pass(tap: str) -> None:
    class Zero(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.shape[1])
            return x * 0

    seen: list[int] = []
    network, images = small(), torch.rand(1, 2, 8, 8)
    before = network(images)
    network.insert(tap, "zero", Zero())
    assert not torch.equal(before, network(images))
    assert seen == [network.widths[tap]]


def test_weights_depend_on_the_seed_alone() -> None:
    first, torch_state = small().state_dict(), torch.get_rng_state()
    again, other = small().state_dict(), small(seed=1).state_dict()
    assert torch.equal(torch_state, torch.get_rng_state())
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["blocks.0.qkv.weight"], other["blocks.0.qkv.weight"])
    assert not torch.equal(first["embedding.positions"], other["embedding.positions"])


def test_settings_that_cannot_be_are_sentences() -> None:
    with pytest.raises(PolyclinicError, match="network: embedding = 10 must be a multiple of heads = 3"):
        make_recipe({"federation": "x", "network": {"name": "vit", "embedding": 10, "heads": 3}})
    with pytest.raises(PolyclinicError, match=r"network\.patch = 6 is not possible"):
        make_recipe({"federation": "x", "network": {"name": "vit", "patch": 6}})


@pytest.mark.parametrize("dims", [2, 3])
def test_fedbcs_trains_it_and_a_resumed_run_ends_the_same(dims: int, tmp_path: Path) -> None:
    """FSR and CDPA find their taps and levels."""
    recipe = tiny_recipe("fedbcs", network=SMALL, training={"rounds": 2, "local_epochs": 1})
    whole = tiny_server(tmp_path / "whole", recipe, dims, observer=(keeper := Keeper()))
    start = {name: tensor.clone() for name, tensor in whole.state.weights.items()}
    whole.fit()
    assert not keeper.refusals
    assert "taps.encoder1.fsr.gates.weight" in start
    still = [name for name, tensor in start.items() if torch.equal(tensor, whole.state.weights[name])]
    # In the second of two rounds everything that a loss can reach has moved.
    assert not still, still
    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "cut", recipe, dims, observer=Killer(lambda what, n, _: (what, n) == ("site", 1))).fit()
    resumed = tiny_server(tmp_path / "cut", recipe, dims)
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))


@pytest.mark.parametrize("key", ["patch", "embedding", "layers", "heads", "mlp"])
def test_keys_of_this_network_are_refused_for_another(key: str) -> None:
    with pytest.raises(PolyclinicError, match=f"{key} needs name = 'vit', not 'unet'"):
        make_recipe({"federation": "x", "network": {key: 8 if key == "patch" else 12}})


def test_the_last_activation_is_that_of_the_decoder() -> None:
    images = torch.rand(2, 2, 16, 16)
    before, after = (small(last_activation=last).eval().features(images) for last in ("same", "leaky-relu"))
    assert after.decoder[-1].min() < 0
    assert torch.equal(before.decoder[-1], after.decoder[-1].relu())
