from __future__ import annotations

from pathlib import Path

import pytest
import torch

from polyclinic.components.base import Context
from polyclinic.components.updates.weight_noise import WeightNoise, noisy_names
from polyclinic.core.seeds import generator_for
from polyclinic.exchange.messages import Update
from polyclinic.federation.workspace import Workspace, build_workspace
from support import Keeper, Keeping, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task


def round_of(method: str, folder: Path, dims: int = 2, **sections: dict[str, object]):  # type: ignore[no-untyped-def]
    """The updates of the first round by site, and the new global weights."""
    server = tiny_server(folder, tiny_recipe(method, **sections), dims, engine=Keeping)
    server.round()
    return {u.site: u for u in server.engine.updates}, server.state.weights, server.workspace  # type: ignore[attr-defined]


def is_noisy(workspace: Workspace, name: str) -> bool:
    """The rule in words: weights of convolutions, and nothing of norm layers, biases or buffers."""
    modules = dict(workspace.network.named_modules())
    module, _, last = name.rpartition(".")
    return last == "weight" and isinstance(modules[module], torch.nn.modules.conv._ConvNd)


def naive(weights: dict[str, torch.Tensor], names: list[str], z: float, site: str, round_number: int):  # type: ignore[no-untyped-def]
    """The noise of a site by name, drawn number by number from its own generator, with a deviation by hand."""
    generator = generator_for(0, site, round_number, "weight_noise")
    found = {}
    for name in names:
        values = weights[name].double().flatten().tolist()
        middle = sum(values) / len(values)
        spread = (sum((value - middle) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        found[name] = z * spread * torch.randn(weights[name].shape, generator=generator).double()
    return found


@pytest.mark.parametrize("dims", [2, 3])
def test_an_update_leaves_with_noise_in_proportion_to_each_tensors_spread(dims: int, tmp_path: Path) -> None:
    clean, _, _ = round_of("fedavg", tmp_path / "fedavg", dims)
    noisy, after, workspace = round_of("histofl(noise_level=0.1)", tmp_path / "histofl", dims)
    touched = [name for name, _ in workspace.network.named_parameters() if is_noisy(workspace, name)]
    assert touched == noisy_names(workspace.network)
    assert 0 < len(touched) < len(list(workspace.network.parameters()))
    for site, update in noisy.items():
        noise = naive(clean[site].weights, touched, 0.1, site, 0)
        for name, tensor in update.weights.items():
            if name not in touched:
                assert torch.equal(tensor, clean[site].weights[name]), name
                continue
            assert tensor.dtype == torch.float32
            wanted = clean[site].weights[name].double() + noise[name]
            torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-6)
            assert not torch.equal(tensor, clean[site].weights[name])
        assert update.shared == {}
    total = sum(update.samples for update in noisy.values())
    for name in touched:
        mean = sum(update.samples / total * update.weights[name].double() for update in noisy.values())
        torch.testing.assert_close(after[name].double(), mean, rtol=1e-5, atol=1e-6)


def test_the_released_rule_adds_every_sites_noise_unweighted(tmp_path: Path) -> None:
    clean, mean, workspace = round_of("fedavg", tmp_path / "fedavg")
    updates, after, _ = round_of("histofl(noise_level=0.1,noise_mode=official)", tmp_path / "histofl")
    touched = noisy_names(workspace.network)
    noise = {site: naive(clean[site].weights, touched, 0.1, site, 0) for site in clean}
    for site, update in updates.items():
        assert_same(update.weights, clean[site].weights)
        assert update.shared.keys() == {"weight_noise"}
        spread = torch.stack([clean[site].weights[name].std() for name in touched])
        torch.testing.assert_close(update.shared["weight_noise"]["deviations"], spread)
    for name, tensor in after.items():
        if name in touched:
            wanted = mean[name].double() + sum(noise[site][name] for site in clean)
            torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(tensor, mean[name]), name


def noise_component(**settings: object) -> WeightNoise:
    return WeightNoise(WeightNoise.Settings(**settings), Context(tiny_task()))


def noised(weights: dict[str, torch.Tensor], site: str = "a", number: int = 0, **settings: object) -> Update:
    part = noise_component(**settings)
    part._names = list(weights)
    return part.on_update(Update(site, number, weights, 4, 2, {"other": {"x": torch.ones(1)}}, {"loss": 1.0}))


def test_the_noise_is_standard_normal_fresh_in_every_round_and_at_every_site_and_repeatable() -> None:
    weights = {"wide": 5 + 3 * torch.randn(300, 300, generator=torch.Generator().manual_seed(0))}
    drawn = {
        (site, number): (noised(weights, site, number, noise_level=0.2).weights["wide"] - weights["wide"])
        for site in ("a", "b")
        for number in (0, 1)
    }
    scaled = [noise / (0.2 * weights["wide"].std()) for noise in drawn.values()]
    for noise in scaled:
        assert abs(float(noise.mean())) < 0.02
        assert abs(float(noise.std()) - 1) < 0.02
        assert abs(float((noise.abs() > 1.959964).double().mean()) - 0.05) < 0.005
    crossed = torch.corrcoef(torch.stack([noise.flatten() for noise in scaled])) - torch.eye(4)
    assert float(crossed.abs().max()) < 0.02
    again = noised(weights, "b", 1, noise_level=0.2).weights["wide"]
    assert torch.equal(again, weights["wide"] + drawn["b", 1]) or torch.allclose(again - weights["wide"], drawn["b", 1])


def test_the_update_that_came_in_is_not_changed_and_the_rest_of_it_stays() -> None:
    weights = {"a": torch.randn(4, 3), "b": torch.full((3,), 2.0)}
    before = {name: tensor.clone() for name, tensor in weights.items()}
    update = noised(weights)
    assert_same(weights, before)
    assert not torch.equal(update.weights["a"], before["a"])
    assert torch.equal(update.weights["b"], before["b"]), "equal entries have no spread"
    assert (update.site, update.samples, update.steps, update.losses) == ("a", 4, 2, {"loss": 1.0})
    assert torch.equal(update.shared["other"]["x"], torch.ones(1))


def test_single_numbers_biases_and_frozen_weights_get_none_and_later_components_weights_do() -> None:
    workspace = build_workspace(tiny_recipe("histofl+fsr(form=released)"), tiny_task())
    names = set(noisy_names(workspace.network))
    assert "taps.encoder1.fsr.mix" in names, "installed after the noise"
    assert not any("bias" in name for name in names)
    workspace.network.extras["one"] = torch.nn.ParameterList([torch.ones(1), torch.ones(2)])
    assert set(noisy_names(workspace.network)) - names == {"extras.one.1"}
    workspace.network.frozen = lambda: {"extras.one.1"}  # type: ignore[method-assign]
    assert set(noisy_names(workspace.network)) == names


@pytest.mark.parametrize("mode", ["client", "official"])
def test_level_zero_is_fedavg_bit_for_bit(mode: str, tmp_path: Path) -> None:
    plain = tiny_server(tmp_path / "plain", tiny_recipe("fedavg"))
    zero = tiny_server(tmp_path / "zero", tiny_recipe(f"histofl(noise_level=0,noise_mode={mode})"))
    plain.fit()
    zero.fit()
    assert_same(final_tensors(plain), final_tensors(zero))
    assert zero.workspace.declared()["weight_noise"] == ()


@pytest.mark.parametrize("method", ["fedbn", "local"])
@pytest.mark.parametrize("mode", ["client", "official"])
def test_weights_that_stay_at_a_site_get_no_noise(method: str, mode: str, tmp_path: Path) -> None:
    clean = tiny_server(tmp_path / "clean", tiny_recipe(method))
    noisy = tiny_server(tmp_path / "noisy", tiny_recipe(f"{method}+weight_noise(noise_mode={mode})"))
    clean.round()
    noisy.round()
    first, second = final_tensors(clean), final_tensors(noisy)
    personal = [name for name in first if "/personal/" in name]
    assert personal
    assert_same({n: first[n] for n in personal}, {n: second[n] for n in personal})
    moved = [n for n in first if n.startswith("global/") and not torch.equal(first[n], second[n])]
    assert bool(moved) == (method == "fedbn")


@pytest.mark.parametrize("mode", ["client", "official"])
def test_what_stays_at_a_site_tells_the_server_nothing_of_its_spread(mode: str, tmp_path: Path) -> None:
    updates, _, workspace = round_of(f"local+weight_noise(noise_mode={mode})", tmp_path)
    assert noisy_names(workspace.network)
    for update in updates.values():
        assert not update.weights
        assert not any(t.any() for t in update.shared.get("weight_noise", {}).values())


@pytest.mark.parametrize("mode", ["client", "official"])
@pytest.mark.parametrize("base", ["histofl+afa", "pathfl+weight_noise", "fedproto+weight_noise"])
def test_it_goes_with_other_components(base: str, mode: str, tmp_path: Path) -> None:
    method = f"{base}+weight_noise(noise_mode={mode})"
    server = tiny_server(tmp_path, tiny_recipe(method, training={"rounds": 2}), observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert all(t.isfinite().all() for t in server.state.weights.values() if t.is_floating_point())


@pytest.mark.parametrize("mode", ["client", "official"])
def test_sites_that_are_away_add_no_noise(mode: str, tmp_path: Path) -> None:
    """A federation of which one site answers in a round is, in that round, that site's noisy model."""
    ends = []
    for z in (0.0, 0.1):
        method = f"histofl(noise_level={z},noise_mode={mode})"
        server = tiny_server(tmp_path / str(z), tiny_recipe(method, training={"participation": 0.3}), engine=Keeping)
        server.round()
        (update,) = server.engine.updates  # type: ignore[attr-defined]
        ends.append((update, server.state.weights))
    (clean, _), (update, after) = ends
    noise = naive(clean.weights, noisy_names(server.workspace.network), 0.1, clean.site, 0)
    assert (mode == "official") == torch.equal(update.weights[min(noise)], clean.weights[min(noise)])
    for name, tensor in after.items():
        wanted = clean.weights[name] + noise.get(name, 0)
        torch.testing.assert_close(tensor.double(), wanted.double(), rtol=1e-5, atol=1e-6)
