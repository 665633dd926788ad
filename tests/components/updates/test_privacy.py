"""Site-level differential privacy: the equation, the secret, what is refused, and the record."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from polyclinic.components import registry
from polyclinic.components.base import Component
from polyclinic.components.toolbox.privacy.accounting import epsilon_after
from polyclinic.components.toolbox.privacy.secret_normals import normal
from polyclinic.components.updates.privacy import Privacy, clipped
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors
from polyclinic.exchange.messages import Update, to_tensors
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.recipe import Recipe
from support import (
    Interrupted,
    Keeper,
    Keeping,
    Killer,
    assert_same,
    call,
    final_tensors,
    tiny_recipe,
    tiny_server,
    tiny_task,
)

SITES = ("north", "south", "west")


def recipe(method: str = "fedavg+privacy", norm: str = "instance", **sections: Any) -> Recipe:
    return tiny_recipe(method, network={"norm": norm}, **sections)


def round_of(method: str, folder: Path, norm: str = "instance", **sections: Any) -> tuple[dict[str, Update], Any]:
    """The updates of the first round by site, and the server."""
    server = tiny_server(folder, recipe(method, norm, **sections), engine=Keeping)
    server.round()
    return {u.site: u for u in server.engine.updates}, server  # type: ignore[attr-defined]


def parameters(workspace: Workspace) -> list[str]:
    return [name for name, _ in workspace.network.named_parameters()]


def ledger(folder: Path, site: str) -> dict[str, torch.Tensor]:
    tensors, _ = load_tensors(folder / "sites" / site / "ledger.safetensors")
    return {name.removeprefix("privacy/"): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("clip", [0.01, 1e6])
def test_an_update_leaves_clipped_and_with_noise(clip: float, tmp_path: Path) -> None:
    clean, plain = round_of("fedavg", tmp_path / "fedavg")
    noisy, _ = round_of(f"fedavg+privacy(clip={clip},noise=0.5)", tmp_path / "privacy")
    before = plain.workspace.initial_exchanged
    assert set(parameters(plain.workspace)) == set(before)
    for site, update in noisy.items():
        change = {n: clean[site].weights[n].double() - before[n].double() for n in before}
        length = sum(float(value) ** 2 for one in change.values() for value in one.flatten()) ** 0.5
        assert 0.01 < length < 1e6
        factor = min(1.0, clip / length)
        # In the first round the newest entry of the ledger is the key of the noise.
        held = ledger(tmp_path / "privacy", site)
        key = bytes(held["releases"][-1].tolist())
        for name, tensor in update.weights.items():
            noise = 0.5 * clip * normal(key, name, tuple(tensor.shape))
            wanted = before[name].double() + factor * change[name] + noise
            assert tensor.dtype == before[name].dtype
            torch.testing.assert_close(tensor.double(), wanted, rtol=1e-6, atol=1e-7)
        assert update.shared.keys() == {"privacy"}
        assert update.shared["privacy"]["releases"].tolist() == [1]


def test_clipping_leaves_a_short_update_as_it_is() -> None:
    short = {"a": torch.tensor([3.0, 0.0]).double(), "b": torch.tensor([[4.0]]).double()}
    assert clipped(short, 5.0) is short
    scaled = clipped(short, 2.5)
    assert scaled["a"].tolist() == [1.5, 0]
    assert scaled["b"].tolist() == [[2.0]]
    zero = {"a": torch.zeros(2).double()}
    assert clipped(zero, 1.0) is zero


def test_no_noise_and_a_wide_clip_is_the_method_itself(tmp_path: Path) -> None:
    clean, _ = round_of("fedavg", tmp_path / "fedavg")
    same, _ = round_of("fedavg+privacy(clip=1e6,noise=0)", tmp_path / "privacy")
    for site, update in same.items():
        for name, tensor in update.weights.items():
            torch.testing.assert_close(tensor, clean[site].weights[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_buffers_integers_and_weights_that_stay_get_no_noise(method: str, tmp_path: Path) -> None:
    clean, plain = round_of(method, tmp_path / "clean", norm="batch")
    noisy, server = round_of(f"{method}+privacy(uncovered=allow)", tmp_path / "noisy", norm="batch")
    names = plain.workspace.network.buffer_names()
    for site, update in noisy.items():
        assert update.weights.keys() == plain.workspace.exchanged
        for name in update.weights:
            assert torch.equal(update.weights[name], clean[site].weights[name]) == (name in names), name
    assert bool(names & plain.workspace.exchanged) == (method == "fedavg")
    first, second = final_tensors(plain), final_tensors(server)
    personal = [name for name in first if "/personal/" in name]
    assert bool(personal) == (method == "fedbn")
    assert_same({n: first[n] for n in personal}, {n: second[n] for n in personal})


def component(workspace: Workspace) -> Privacy:
    (found,) = [c for c in workspace.fresh_components({}) if isinstance(c, Privacy)]
    return found


def released(held: dict[str, torch.Tensor], site: str, number: int, change: float, **settings: Any) -> Update:
    """What a site sends whose training adds ``change`` to every parameter."""
    text = ",".join(f"{key}={str(value).lower()}" for key, value in settings.items())
    workspace = build_workspace(recipe(f"fedavg+privacy({text})"), tiny_task())
    part = component(workspace)
    part.ledger, part._received = held, workspace.initial_exchanged
    weights = {name: tensor + change for name, tensor in workspace.initial_exchanged.items()}
    return part.on_update(Update(site, number, weights, 4, 2, {}, {"loss": 1.0}))


def test_a_repeated_release_is_the_same_and_any_other_has_noise_of_its_own() -> None:
    held: dict[str, torch.Tensor] = {}
    first = released(held, "a", 0, 0.5)
    again = released(held, "a", 0, 0.5)
    assert_same(first.weights, again.weights)
    assert again.shared["privacy"]["releases"].tolist() == [1]
    others = [
        released(held, "a", 1, 0.5),
        released(held, "a", 0, 0.5 + 1e-6, clip=1e6),  # came out differently, as on a GPU
        released(held, "a", 0, 0.5, clip=1e6),
        released(held, "a", 0, 0.5, noise=2.0, clip=1e6),
        released({}, "a", 0, 0.5),
        released({"secret": held["secret"]}, "b", 0, 0.5),
    ]
    assert [u.shared["privacy"]["releases"].item() for u in others] == [2, 3, 4, 5, 1, 1]
    name = max(first.weights, key=lambda n: first.weights[n].numel())
    drawn = [u.weights[name].flatten().double() for u in (first, *others)]
    drawn = [(one - one.mean()) / one.std() for one in drawn]
    crossed = torch.corrcoef(torch.stack(drawn)) - torch.eye(len(drawn))
    assert float(crossed.abs().max()) < 5 / len(drawn[0]) ** 0.5


def test_seeded_noise_can_be_repeated_and_does_not_depend_on_the_update() -> None:
    settings = {"seeded": True, "clip": 1e6, "noise": 1e-6}
    first, same = (released({}, "a", 3, 0.5, **settings) for _ in range(2))
    assert_same(first.weights, same.weights)
    moved = released({}, "a", 3, 0.25, **settings)
    for name, tensor in first.weights.items():
        torch.testing.assert_close(tensor - 0.25, moved.weights[name], rtol=1e-5, atol=1e-6)
    assert not torch.equal(released({}, "b", 3, 0.5, **settings).weights[name], first.weights[name])


def test_a_broken_update_is_not_made_finite(tmp_path: Path) -> None:
    for bad in (float("nan"), float("inf")):
        update = released({}, "a", 0, bad)
        assert not all(t.isfinite().all() for t in update.weights.values())


def test_secrets_differ_between_sites_and_runs_stay_on_the_sites_disk_and_never_leave(tmp_path: Path) -> None:
    runs = [round_of("fedavg+privacy", tmp_path / str(number)) for number in range(2)]
    secrets = []
    for number, (updates, server) in enumerate(runs):
        for site in SITES:
            file = tmp_path / str(number) / "sites" / site / "ledger.safetensors"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            held = ledger(tmp_path / str(number), site)
            assert held.keys() == {"secret", "releases", "noises"}
            secrets.append(bytes(held["secret"].tolist()))
            sent = save(to_tensors(updates[site])[0])
            assert secrets[-1] not in sent
            assert bytes(held["releases"][0].tolist()) not in sent
        server_files = [path.read_bytes() for path in (tmp_path / str(number) / "server").rglob("*") if path.is_file()]
        assert server_files
        assert not any(secret in data for secret in secrets for data in server_files)
        assert not any(component.ledger for component in server.components)
    assert len(set(secrets)) == 6
    assert not torch.equal(*(next(iter(u["north"].weights.values())) for u, _ in runs))


@pytest.mark.parametrize("seeded", ["true", "false"])
@pytest.mark.parametrize(("number", "moment"), [(0, "site"), (0, "round"), (1, "site"), (1, "round")])
def test_a_killed_run_sends_the_same_noise_again(seeded: str, number: int, moment: str, tmp_path: Path) -> None:
    """The first round too, whose memory is taken back as a whole."""
    settings = recipe(f"fedavg+privacy(seeded={seeded})", policies={"skipped_rounds": "reset"})

    def when(what: str, at: int, site: str) -> bool:
        return (what, at) == (moment, number) and site in ("", "south")

    killed = tiny_server(tmp_path, settings, observer=Killer(when), engine=Keeping)
    with pytest.raises(Interrupted):
        killed.fit()
    resumed = tiny_server(tmp_path, settings, observer=(keeper := Keeper()), engine=Keeping)
    assert resumed.state.round == number
    resumed.fit()
    before = {(u.site, u.round): u for u in killed.engine.updates}  # type: ignore[attr-defined]
    after = {(u.site, u.round): u for u in resumed.engine.updates}  # type: ignore[attr-defined]
    repeated = before.keys() & after.keys()
    assert repeated
    for one in repeated:
        assert_same(before[one].weights, after[one].weights)
    assert keeper.events[-1]["notes"]["privacy"]["releases"] == dict.fromkeys(SITES, 3.0)


def test_seeded_runs_are_equal(tmp_path: Path) -> None:
    servers = [tiny_server(tmp_path / str(n), recipe("fedavg+privacy(seeded=true)")) for n in range(2)]
    for server in servers:
        server.fit()
    assert_same(*map(final_tensors, servers))


def test_the_count_survives_rounds_without_the_site(tmp_path: Path) -> None:
    """With ``skipped_rounds = "reset"`` a site forgets everything else."""
    sections: dict[str, Any] = {
        "training": {"participation": 0.34, "rounds": 6},
        "policies": {"skipped_rounds": "reset"},
    }
    server = tiny_server(tmp_path, recipe("fedavg+privacy(noise=2)", **sections), observer=(keeper := Keeper()))
    server.fit()
    asked = {site: sum(site in e["sites"] for e in keeper.events) for site in SITES}
    assert max(asked.values()) > 1
    for site, count in asked.items():
        assert len(ledger(tmp_path, site)["releases"] if count else []) == count
    for event in keeper.events:
        notes = event["notes"]["privacy"]
        for site, count in notes["releases"].items():
            assert notes["epsilon"][site] == epsilon_after(int(count), 2.0, 1e-5)


def warnings(method: str, norm: str = "instance") -> str:
    return "\n".join(build_workspace(recipe(method, norm), tiny_task()).warnings())


def test_warnings() -> None:
    assert warnings("fedavg+privacy(noise=0.001)") == ""
    assert "no privacy" in warnings("fedavg+privacy(noise=0)")
    assert "who do not know the seed" in warnings("fedavg+privacy(seeded=true)")
    assert "does not cover" in warnings("fedavg+privacy(uncovered=allow)", norm="batch")
    assert "times as long" in warnings("fedavg+privacy(noise=5)")
    assert "delta = 0.1" in warnings("fedavg+privacy(delta=0.1)")
    assert "nothing to add noise to" in warnings("local+privacy")


def test_settings_take_one_of_noise_and_target_epsilon() -> None:
    for text in ("noise=1,target_epsilon=2", "clip=0", "noise=-1", "delta=0", "uncovered=yes"):
        with pytest.raises(PolyclinicError, match=r"^privacy"):
            parse_method(f"fedavg+privacy({text})")
    part = component(build_workspace(recipe("fedavg+privacy(target_epsilon=3)"), tiny_task()))
    assert part.settings.noise is None
    assert epsilon_after(3, part.noise, 1e-5) == pytest.approx(3)
    assert Privacy.Settings(**part.settings.model_dump()) == part.settings


class Later(Component):
    """Writes its name into every update."""

    name = "later"
    level = "aggregation"

    def on_update(self, update: Update) -> Update:
        return replace(update, weights={name: torch.full_like(t, 7.0) for name, t in update.weights.items()})


@pytest.mark.parametrize(
    "method", ["fedavg+privacy(clip=0.001,noise=0)+later", "fedavg+later+privacy(clip=0.001,noise=0)"]
)
def test_it_acts_last_wherever_it_stands(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.components()
    monkeypatch.setattr(registry, "_COMPONENTS", {**registry._COMPONENTS, "later": Later})
    updates, server = round_of(method, tmp_path)
    before = server.workspace.initial_exchanged
    for update in updates.values():
        change = torch.cat([(update.weights[n].double() - t.double()).flatten() for n, t in before.items()])
        assert float(change.norm()) == pytest.approx(0.001, rel=1e-2)


def test_another_component_that_must_be_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.components()
    monkeypatch.setattr(Later, "acts_last", True)
    monkeypatch.setattr(registry, "_COMPONENTS", {**registry._COMPONENTS, "later": Later})
    with pytest.raises(PolyclinicError, match="later wants to be that too"):
        build_workspace(recipe("fedavg+privacy+later"), tiny_task())


@pytest.mark.parametrize("method", ["fedprox", "histofl", "pathfl", "moon", "fedheal", "fedbn"])
def test_it_goes_with_other_methods(method: str, tmp_path: Path) -> None:
    text = f"{method}+privacy(uncovered=allow,noise=0.01)"
    server = tiny_server(tmp_path, recipe(text, training={"rounds": 2}), observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert all(t.isfinite().all() for t in server.state.weights.values() if t.is_floating_point())


def test_from_the_command_line_to_the_summary(tiny_recipe_file: Path, tmp_path: Path) -> None:
    method = "fedavg+privacy(clip=1.0,noise=4.0)"
    arguments = ("run", tiny_recipe_file, "--set", f'method="{method}"', "--out", tmp_path / "run")
    refusal = call(*arguments)
    assert refusal.code == 2
    assert "policies.buffers" in refusal.err
    done = call(*arguments, "--set", "policies.buffers=keep")
    assert done.code == 0, done.err
    spent = epsilon_after(3, 4.0, 1e-5)
    assert f"privacy: epsilon {spent:.3g} at delta 1e-05 (largest of the sites)" in done.out
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert told["sites"] == {
        site: {"epsilon": spent, "delta": 1e-5, "releases": 3} for site in ("north", "south")
    }  # fmt: skip
    assert told["epsilon"] == spent
    assert "mean of each loss term" in told["not_covered"]
    assert told["covers"].startswith("parameters")
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["notes"]["privacy"]["releases"]["north"] for e in events] == [1, 2, 3]
    shown = call("explain", method, "--recipe", tiny_recipe_file, "--set", "policies.buffers=keep")
    assert shown.code == 0, shown.err
    assert "releases" in shown.out


def test_no_noise_has_no_epsilon_in_the_record(tiny_recipe_file: Path, tmp_path: Path) -> None:
    method = "fedavg+privacy(noise=0,uncovered=allow)"
    done = call("run", tiny_recipe_file, "--method", method, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    text = (tmp_path / "run" / "summary.json").read_text() + (tmp_path / "run" / "events.jsonl").read_text()
    assert "Infinity" not in text
    assert "privacy: no bound on epsilon" in done.out
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert told["epsilon"] is None
    assert any("buffers of the network" in one for one in told["not_covered"])


def test_weights_that_were_received_in_another_shape_do_not_leave() -> None:
    """Noise of one number would be shared by all weights of a tensor, or that of several could be averaged."""
    workspace = build_workspace(recipe(), tiny_task())
    component = next(c for c in workspace.fresh_components({}) if isinstance(c, Privacy))
    weights = {n: t.clone() for n, t in workspace.initial_exchanged.items()}
    for shape in ((1, 1, 1, 1), (5, *weights["classifier.weight"].shape)):
        component._received = {**weights, "classifier.weight": torch.zeros(shape)}
        with pytest.raises(PolyclinicError, match=r"'classifier.weight' came with shape .* nothing leaves"):
            component.on_update(Update("north", 0, weights, 1, 1))
        assert not component.ledger
