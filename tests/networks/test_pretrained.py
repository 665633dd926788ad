"""Frozen encoders, with small random models; nothing is downloaded."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from polyclinic import run
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Task
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update, tensor_bytes
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks import build_network, parameter_count
from polyclinic.networks.presets import PRESETS
from polyclinic.networks.pretrained import choose_levels, colours
from polyclinic.recipe.files import load_recipe, make_recipe
from polyclinic.runs.predict import load_model
from support import Interrupted, Keeper, Killer, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task
from tiny_encoders import RGB, TINY, build, encoder_weights

# ---- the network ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "sides", "multiple"),
    [
        ("tiny", [40, 20, 10], 4),
        ("test_vit", [40, 24, 12, 6, 3], 16),
        ("test_resnet", [40, 32, 16, 8, 4, 2], 32),
        ("test_convnext", [40, 16, 8, 4, 2], 32),
    ],
)
@pytest.mark.parametrize("upsample", ["deconv", "linear"])
def test_any_timm_model_becomes_a_pyramid(model: str, sides: list[int], multiple: int, upsample: str) -> None:
    network = build(model=model, upsample=upsample, norm="group")
    assert network.multiples == (multiple, multiple)
    features = network.features(torch.rand(2, 3, 40, 40))
    assert [(f.shape[1], f.shape[2]) for f in features.encoder] == [(2 << k, s) for k, s in enumerate(sides)]
    assert [(f.shape[1], f.shape[2]) for f in features.decoder] == [(2 << k, s) for k, s in enumerate(sides[:-1])][::-1]
    assert features.logits.shape == (2, 2, 40, 40)
    widths = [network.widths[tap] for tap in network.widths if tap.startswith(("encoder", "bottle"))]
    assert widths == [f.shape[1] for f in features.encoder]
    network.eval()
    assert network(torch.rand(1, 3, 33, 65)).shape == (1, 2, 33, 65)


def test_patches_whose_size_is_no_power_of_two_fit_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = replace(PRESETS["tiny"], options={**PRESETS["tiny"].options, "patch_size": 14, "img_size": 28})
    monkeypatch.setitem(PRESETS, "tiny", odd)
    network = build(norm="group")
    assert network.multiples == (14, 14)
    features = network.features(torch.rand(1, 3, 28, 40))
    assert [tuple(f.shape[2:]) for f in features.encoder] == [(28, 40), (16, 24), (8, 12), (4, 6), (2, 3)]
    assert features.logits.shape == (1, 2, 28, 40)


def test_levels_are_one_map_of_each_size_or_evenly_spread_depths() -> None:
    def maps(*strides: int) -> list[dict[str, int]]:
        return [{"num_chs": 10 + number, "reduction": stride} for number, stride in enumerate(strides)]

    indices, levels = choose_levels(maps(1, 2, 4, 4, 8))
    assert indices == [1, 3, 4]
    assert [(level.channels, level.stride, level.doublings) for level in levels] == [(11, 2, 0), (13, 4, 0), (14, 8, 0)]
    indices, levels = choose_levels(maps(*[16] * 12))
    assert indices == [2, 5, 8, 11]
    assert [(level.stride, level.doublings) for level in levels] == [(2, 3), (4, 2), (8, 1), (16, 0)]


def test_every_weight_is_in_one_stage_and_the_encoder_is_frozen() -> None:
    network = build()
    network.insert("encoder1", "scale", nn.BatchNorm2d(4))
    network.extras["projection"] = nn.Linear(3, 3)
    stages = network.stages()
    assert sorted(name for names in stages.values() for name in names) == sorted(network.state_dict())
    assert list(stages) == ["encoder0", "encoder1", "bottleneck", "decoder1", "decoder0", "head"]
    assert all(set(names) - network.frozen() for names in stages.values())
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in network.named_parameters()} - network.frozen()
    assert network.frozen() == {f"encoder.model.{name}" for name in network.encoder.model.state_dict()}
    assert parameter_count(network) == sum(network.state_dict()[name].numel() for name in trained)
    norms = network.norm_names()
    assert "taps.encoder1.scale.weight" in norms
    assert not norms & network.frozen()


def test_training_leaves_the_encoder_alone() -> None:
    network = build(model="test_resnet").train()
    assert network.training
    assert not any(module.training for module in network.encoder.modules())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    features = network.features(torch.rand(2, 3, 64, 64))
    features.logits.square().mean().backward()
    assert all(p.grad is None for p in network.encoder.parameters())
    assert all(p.grad is not None for n, p in network.named_parameters() if n not in network.frozen())
    moved = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved  # running statistics of the decoder's norms
    assert not moved & network.frozen()
    assert not any(found.requires_grad for found in network.maps(torch.rand(1, 3, 64, 64)))


def test_a_copy_shares_the_encoder_and_nothing_else() -> None:
    network = build()
    twin = copy.deepcopy(network)
    shared = {name for name, p in network.named_parameters() if twin.get_parameter(name) is p}
    assert shared == network.frozen()


def test_channels_become_colours() -> None:
    assert torch.equal(colours(3), torch.eye(3))
    assert torch.equal(colours(1), torch.ones(3, 1))
    assert torch.equal(colours(2), torch.tensor([[1, 0], [0, 1], [0.5, 0.5]]))
    assert torch.equal(colours(4), torch.tensor([[0.5, 0, 0, 0.5], [0, 1, 0, 0], [0, 0, 1, 0]]))


def test_the_encoder_sees_the_colours_of_its_pretraining_and_its_last_norm() -> None:
    network = build(task=Task(("a", "b"), 1, 2))
    grey = torch.rand(2, 1, 8, 8)
    scaled = (grey.expand(-1, 3, -1, -1) - 0.5) / torch.tensor([0.25, 0.5, 1.0]).view(1, 3, 1, 1)
    model = network.encoder.model
    tokens = [model.blocks[0](model._pos_embed(model.patch_embed(scaled)))]
    tokens.append(model.blocks[1](tokens[0]))
    prefix = model.num_prefix_tokens
    expected = [model.norm(one)[:, prefix:].transpose(1, 2).unflatten(2, (2, 2)) for one in tokens]
    for found, wanted in zip(network.maps(grey), expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-6)


def test_random_weights_depend_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = build().state_dict(), build().state_dict(), build(1).state_dict()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[n], again[n]) for n in first)
    name = "encoder.model.blocks.0.attn.qkv.weight"
    assert not torch.equal(first[name], other[name])


# ---- the file ------------------------------------------------------------------------------------------------------


def test_the_recipe_writes_down_which_file(weights_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = make_recipe({"federation": "x", "network": {**TINY, "weights": "tiny.safetensors"}})
    assert recipe.network.weights == str(weights_file)
    assert recipe.network.sha256 == hashlib.sha256(weights_file.read_bytes()).hexdigest()
    assert make_recipe({"federation": "x", "network": TINY}).network.sha256 is None
    other = "0" * 64
    given = make_recipe({"federation": "x", "network": {**TINY, "weights": "tiny.safetensors", "sha256": other}})
    assert given.network.sha256 == other
    with pytest.raises(PolyclinicError, match=r"its SHA-256 is .*, network\.sha256 asks for 000000000000"):
        build_network(RGB, given.network, 0)
    with pytest.raises(PolyclinicError, match=r"network\.sha256 = 'abc' is not possible"):
        make_recipe({"federation": "x", "network": {**TINY, "sha256": "abc"}})
    for key in ("model", "weights"):
        with pytest.raises(PolyclinicError, match=f"network: {key} needs name = 'pretrained', not 'unet'"):
            make_recipe({"federation": "x", "network": {key: "conch"}})


def test_a_file_beside_the_recipe_is_found_from_any_folder(weights_file: Path) -> None:
    recipe = weights_file.parent / "recipe.toml"
    recipe.write_text(
        'federation = "x"\n[network]\nname = "pretrained"\nmodel = "resnet18"\nweights = "tiny.safetensors"\n'
    )
    network = load_recipe(recipe).network
    assert network.weights == str(weights_file)
    assert network.sha256 == hashlib.sha256(weights_file.read_bytes()).hexdigest()


def test_intensities_outside_of_0_to_1_are_warned_about() -> None:
    for intensity, warns in (("z-score", True), ("full-range", False)):
        workspace = build_workspace(tiny_recipe("fedavg", network=TINY, data={"intensity": intensity}), tiny_task())
        assert any("expects intensities from 0 to 1" in text for text in workspace.warnings()) == warns
        assert any("the frozen encoder is untrained" in text for text in workspace.warnings())


def test_volumes_and_a_missing_timm_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolyclinicError, match="'pretrained' is for 2D tasks, and this one is 3D"):
        build(task=Task(("a", "b"), 1, 3))
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(PolyclinicError, match=r"needs the package timm.*pip install 'polyclinic\[timm\]'"):
        build()


# ---- federations ---------------------------------------------------------------------------------------------------


class Listening(InProcess):
    """Keeps what crosses the boundary in both directions."""

    crossed: list[Update | Broadcast]

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        self.crossed = [broadcast]
        for answer in super().train(broadcast, sites):
            assert isinstance(answer, Update), answer
            self.crossed.append(answer)
            yield answer


@pytest.mark.parametrize("method", ["fedavg", "fedbn(unseen=average)", "fedbcs"])
def test_frozen_weights_never_leave_and_are_never_stored(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, network=TINY, training={"rounds": 1, "local_epochs": 1})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()), engine=Listening)
    network = server.workspace.network
    frozen = network.frozen()
    before = {name: network.state_dict()[name].clone() for name in frozen}
    server.fit()
    assert not keeper.refusals
    assert_same(before, {name: network.state_dict()[name] for name in frozen})
    assert not frozen & (server.workspace.exchanged | server.workspace.kept)
    assert server.workspace.exchanged | server.workspace.kept == network.state_dict().keys() - frozen
    crossed = server.engine.crossed  # type: ignore[attr-defined]
    assert len(crossed) == 4
    for message in crossed:
        names = {*message.weights, *(name for shared in message.shared.values() for name in shared)}
        assert not {name for name in names if name in frozen or "encoder.model" in name}
    sent = tensor_bytes({n: network.state_dict()[n] for n in server.workspace.exchanged})
    shared = {u.site: sum(map(tensor_bytes, u.shared.values())) for u in crossed if isinstance(u, Update)}
    assert keeper.events[0]["bytes_up"] == {site: sent + extra for site, extra in shared.items()}
    stored = [name for path in tmp_path.rglob("*.safetensors") for name in safe_open(path, "pt").keys()]  # noqa: SIM118
    assert any("optimizer/classifier.weight" in name for name in stored)
    assert not [name for name in stored if "encoder.model" in name]


def test_a_resumed_run_ends_the_same(tmp_path: Path) -> None:
    recipe = tiny_recipe("fedbcs", network=TINY, training={"rounds": 2, "local_epochs": 1})
    whole = tiny_server(tmp_path / "whole", recipe)
    start = {name: tensor.clone() for name, tensor in whole.state.weights.items()}
    whole.fit()
    assert not [name for name, tensor in start.items() if torch.equal(tensor, whole.state.weights[name])]
    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "cut", recipe, observer=Killer(lambda what, n, _: (what, n) == ("site", 1))).fit()
    resumed = tiny_server(tmp_path / "cut", recipe)
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))


def test_a_run_finds_its_encoder_again_or_says_so(tiny_federation: Path, weights_file: Path, tmp_path: Path) -> None:
    """From the recipe of the run folder, whose path and hash lead to the same file."""
    table = {
        "federation": str(tiny_federation),
        "network": {**TINY, "weights": str(weights_file)},
        "training": {"rounds": 1, "batch_size": 2},
        "engine": {"device": "cpu"},
    }
    folder = run(make_recipe(table), out=tmp_path / "run").folder
    workspace, _ = load_model(folder, site=None, part=None, model=None)
    assert_same(encoder_weights(), workspace.network.encoder.model.state_dict())
    tensors = safe_open(next(folder.glob("checkpoints/*/server.safetensors")), "pt")
    trained = torch.equal(tensors.get_tensor("weights/classifier.weight"), workspace.network.classifier.weight)
    assert trained
    original = weights_file.read_bytes()
    save_file({name: tensor + 1 for name, tensor in encoder_weights().items()}, weights_file)
    with pytest.raises(PolyclinicError, match="the very encoder that it was trained with, so restore that file"):
        load_model(folder, site=None, part=None, model=None)
    with pytest.raises(PolyclinicError, match=r"differs from the recipe to resume in network\.sha256"):
        run(make_recipe(table), out=folder, resume=True)
    weights_file.unlink()
    with pytest.raises(PolyclinicError, match=r"tiny\.safetensors': there is no such file at /.*; ask nobody, convert"):
        load_model(folder, site=None, part=None, model=None)
    weights_file.write_bytes(original)
    assert load_model(folder, site=None, part=None, model=None)
