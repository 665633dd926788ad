from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polyclinic.components.base import Context
from polyclinic.components.rounds import ServerRound
from polyclinic.components.toolbox.segmentation_loss import loss_options, segmentation_loss
from polyclinic.components.updates.scaffold import Scaffold
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.seeds import owner_number
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Tensors, Update
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.networks.base import load_weights
from polyclinic.recipe import PolicySettings, Recipe, TrainingSettings
from support import Keeper, Keeping, assert_same, tiny_recipe, tiny_server, tiny_site, tiny_task

SGD = {"optimizer": "sgd", "lr": 0.05, "local_epochs": 2, "rounds": 4}


def sgd_recipe(method: str = "scaffold", **sections: Any) -> Recipe:
    return tiny_recipe(method, training={**SGD, **sections.pop("training", {})}, **sections)


def flat(workspace: Workspace, weights: Tensors) -> torch.Tensor:
    """Controlled parameters as one row, in the order of a control variate."""
    names = sorted(name for name, _ in workspace.network.named_parameters() if name in workspace.exchanged)
    return torch.cat([weights[name].flatten() for name in names])


class Book:
    """The paper's algorithm over a run of the server: controls from weights and steps alone."""

    def __init__(self, server: Server, rate: float) -> None:
        self.server, self.rate = server, rate
        self.controls: dict[str, torch.Tensor] = {}
        size = len(flat(server.workspace, server.state.weights))
        self.common = torch.zeros(size, dtype=torch.float64)

    def round(self) -> None:
        before = flat(self.server.workspace, self.server.state.weights).double()
        seen = len(self.server.engine.updates)  # type: ignore[attr-defined]
        self.server.round()
        updates: list[Update] = self.server.engine.updates[seen:]  # type: ignore[attr-defined]
        changes = []
        for update in updates:
            old = self.controls.get(update.site, torch.zeros_like(self.common))
            moved = (before - flat(self.server.workspace, update.weights).double()) / (update.steps * self.rate)
            self.controls[update.site] = old - self.common + moved
            changes.append(self.controls[update.site] - old)
            torch.testing.assert_close(update.shared["scaffold"]["change"].double(), changes[-1], rtol=0, atol=2e-5)
        share = len(updates) / len(self.server.sites)
        self.common = self.common + share * torch.stack(changes).mean(0)

    def common_of_server(self) -> torch.Tensor:
        return self.server.state.components["scaffold"]["control"]


@pytest.mark.parametrize("participation", [1.0, 2.0])
def test_controls_and_their_sum_are_those_of_the_paper(participation: float, tmp_path: Path) -> None:
    """Option II as printed, from weights, number of steps and rate; c from all sites, those that are away too."""
    recipe = sgd_recipe(training={"participation": participation})
    server = tiny_server(tmp_path, recipe, engine=Keeping)
    book = Book(server, rate=0.05)
    for _ in range(4):
        book.round()
        torch.testing.assert_close(book.common_of_server(), book.common, rtol=0, atol=1e-5)
    total = sum(book.controls.values()) / len(server.sites)
    torch.testing.assert_close(book.common_of_server(), total, rtol=0, atol=1e-5)
    assert book.common.abs().max() > 1e-3


def test_every_step_is_corrected_and_the_corrected_gradient_is_clipped(tmp_path: Path) -> None:
    """One step a round: w_m = w - eta clip(g + c - c_m), with the gradient of the same batch in a plain run."""
    once = {"local_epochs": 1, "steps_per_epoch": 1, "batch_size": 3, "clip_gradients": 0.05}
    server = tiny_server(tmp_path / "a", sgd_recipe(training=once), engine=Keeping)
    server.round()
    start, common = dict(server.state.weights), server.state.components["scaffold"]["control"].float()
    sites = server.engine.sites  # type: ignore[attr-defined]
    control = sites["south"].store.load(before=1).components["scaffold"]["control"]
    server.round()
    update = next(u for u in server.engine.updates[3:] if u.site == "south")  # type: ignore[attr-defined]
    # The plain gradient: FedAvg's single unclipped step on the same batch from the same weights.
    plain = tiny_server(tmp_path / "b", sgd_recipe("fedavg", training={**once, "clip_gradients": None}), engine=Keeping)
    plain.state.round, plain.state.weights = 1, start
    plain.round()
    other = next(u for u in plain.engine.updates if u.site == "south")  # type: ignore[attr-defined]
    before, workspace = flat(server.workspace, start), server.workspace
    gradient = (before - flat(workspace, other.weights)) / 0.05
    corrected = gradient + common - control
    assert corrected.norm() > 0.05
    wanted = before - 0.05 * corrected * (0.05 / (corrected.norm() + 1e-6))
    torch.testing.assert_close(flat(workspace, update.weights), wanted, rtol=0, atol=1e-6)
    after = sites["south"].store.load(before=2).components["scaffold"]["control"]
    torch.testing.assert_close(after, gradient, rtol=0, atol=1e-4)  # neither clipped nor corrected


def test_the_first_round_is_fedavgs(tmp_path: Path) -> None:
    ours, plain = (
        tiny_server(tmp_path / name, sgd_recipe(method))
        for name, method in (("a", "scaffold"), ("b", "fedavg+weighted_mean(weighting=uniform)"))
    )
    for server in (ours, plain):
        server.round()
    assert_same(ours.state.weights, plain.state.weights)
    for server in (ours, plain):
        server.round()
    name = next(iter(ours.state.weights))
    assert not torch.equal(ours.state.weights[name], plain.state.weights[name])


class Twins(InProcess):
    """Both sites answer with what the first one does: identical data, batches and steps."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        (answer,) = super().train(broadcast, ["north"])
        assert isinstance(answer, Update)
        yield answer
        yield replace(answer, site="south")


def test_corrections_vanish_for_identical_sites(tmp_path: Path) -> None:
    recipe = sgd_recipe()
    ours = tiny_server(tmp_path / "a", recipe, sizes={"north": 3, "south": 3}, engine=Twins)
    plain = tiny_server(tmp_path / "b", sgd_recipe("fedavg"), sizes={"north": 3, "south": 3}, engine=Twins)
    for server in (ours, plain):
        server.fit()
    control = ours.engine.sites["north"].store.load(before=9).components["scaffold"]["control"]  # type: ignore[attr-defined]
    common = ours.state.components["scaffold"]["control"]
    torch.testing.assert_close(common.float(), control, rtol=0, atol=1e-7)
    for name, tensor in plain.state.weights.items():
        torch.testing.assert_close(ours.state.weights[name], tensor, rtol=1e-4, atol=1e-6)


class Losing(InProcess):
    """What south answers in the second round is lost on the way."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for answer in super().train(broadcast, sites):
            lost = broadcast.round == 1 and answer.site == "south"
            yield Failure("south", 1, "late") if lost else answer


def test_a_change_that_did_not_arrive_is_taken_back_by_its_site(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, sgd_recipe(), engine=Losing)
    server.fit()
    stores = {name: site.store for name, site in server.engine.sites.items()}  # type: ignore[attr-defined]
    controls = [store.load(before=9).components["scaffold"]["control"] for store in stores.values()]
    common = server.state.components["scaffold"]["control"]
    torch.testing.assert_close(common.float(), torch.stack(controls).mean(0), rtol=0, atol=1e-6)
    lost = stores["south"].load(before=2).components["scaffold"]["control"]
    before = stores["south"].load(before=3).components["scaffold"]["before"]
    assert not torch.equal(lost, before)


def test_option_one_is_the_gradient_at_the_received_weights(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, sgd_recipe("scaffold(option=I)", network={"norm": "instance"}), engine=Keeping)
    start = dict(server.state.weights)
    server.round()
    (update,) = [u for u in server.engine.updates if u.site == "north"]  # type: ignore[attr-defined]
    workspace, data = build_workspace(sgd_recipe(network={"norm": "instance"}), tiny_task()), tiny_site("north", 5)
    load_weights(workspace.network, start)
    options = loss_options(workspace.recipe.training, workspace.recipe.policies)
    total = torch.zeros(())
    for part in torch.arange(5).split(2):  # the Dice of a batch is a mean over its images
        images, labels = data.images.batch(part)
        loss = segmentation_loss(workspace.network(images), labels, **options)
        total = total + len(part) / 5 * loss
    total.backward()  # type: ignore[no-untyped-call]
    wanted = flat(workspace, {n: p.grad for n, p in workspace.network.named_parameters() if p.grad is not None})
    torch.testing.assert_close(update.shared["scaffold"]["change"], wanted, rtol=1e-4, atol=1e-6)


def test_option_one_leaves_running_statistics_alone(tmp_path: Path) -> None:
    servers = [tiny_server(tmp_path / o, sgd_recipe(f"scaffold(option={o})")) for o in ("I", "II")]
    for server in servers:
        server.round()  # the corrections of the first round are 0, whatever the option
    assert_same(*(server.state.weights for server in servers))


def test_the_servers_step(tmp_path: Path) -> None:
    one, half = (tiny_server(tmp_path / str(eta), sgd_recipe(f"scaffold(global_lr={eta})")) for eta in (1, 0.5))
    start = dict(one.state.weights)
    for server in (one, half):
        server.round()
    buffers = one.workspace.network.buffer_names()
    for name, tensor in one.state.weights.items():
        middle = tensor if name in buffers else (start[name] + tensor) / 2
        torch.testing.assert_close(half.state.weights[name], middle, rtol=1e-5, atol=1e-7)


def test_layers_that_stay_at_a_site_have_no_control(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, sgd_recipe("fedbn+scaffold"))
    server.round()
    kept = {n: p for n, p in server.workspace.network.named_parameters() if n in server.workspace.kept}
    travelling = sum(p.numel() for n, p in server.workspace.network.named_parameters() if n not in kept)
    assert kept
    (declared,) = server.declared["scaffold"]
    assert declared.shape == (travelling,)


def test_without_exchange_there_is_nothing_to_control(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, sgd_recipe("local+scaffold"), observer=(keeper := Keeper()))
    server.round()
    assert not keeper.refusals
    assert server.declared["scaffold"] == ()


@pytest.mark.parametrize("training", [{"optimizer": "adam"}, {"momentum": 0.9}, {"schedule": "cosine"}])
def test_with_other_optimisers_a_control_is_still_a_mean_gradient(training: dict[str, Any], tmp_path: Path) -> None:
    """Of one step it is the gradient of that step, whatever the optimiser made of it."""
    once = {"local_epochs": 1, "steps_per_epoch": 1}
    controls = []
    for name, chosen in (("plain", {}), ("other", training)):
        server = tiny_server(tmp_path / name, sgd_recipe(training={**once, **chosen}))
        server.round()
        controls.append(server.state.components["scaffold"]["control"])
    torch.testing.assert_close(controls[0], controls[1])


def scaffold(policies: PolicySettings | None = None, **training: Any) -> Scaffold:
    context = Context(tiny_task(), TrainingSettings(**training), policies or PolicySettings())
    return Scaffold(Scaffold.Settings(), context)


def test_an_enormous_change_is_left_out_and_its_site_not_acknowledged() -> None:
    component, sentences = scaffold(), list[str]()
    server = ServerRound(
        3, 5, None, {}, ("a", "b", "c", "d"), frozenset(), "average", torch.Generator(), torch.device("cpu"),  # type: ignore[arg-type]
        warn=sentences.append,
    )  # fmt: skip
    changes = {"a": torch.ones(2), "b": torch.ones(2), "c": 1e9 * torch.ones(2)}
    shared = component.combine(server, {site: {"change": change} for site, change in changes.items()})
    assert shared["control"].tolist() == [0.5, 0.5]
    assert shared["owners"].tolist() == [owner_number("a"), owner_number("b")]
    assert shared["rounds"].tolist() == [3, 3]
    assert len(sentences) == 1
    assert "c's control variate is 1.41e+09 long" in sentences[0]
    assert len(scaffold(max_update_ratio="off")._usual(server, changes)) == 3
    quiet = {site: torch.zeros(2) for site in "abc"}
    assert component._usual(server, quiet).keys() == quiet.keys()


@pytest.mark.parametrize(
    ("training", "skipped", "words"),
    [
        ({"optimizer": "sgd"}, "keep", []),
        ({"optimizer": "sgd", "momentum": 0.9}, "keep", ["with momentum = 0.9"]),
        ({"optimizer": "adam"}, "reset", ["with adam", "skipped_rounds = reset"]),
    ],
)
def test_warnings(training: dict[str, Any], skipped: str, words: list[str]) -> None:
    said = scaffold(PolicySettings(skipped_rounds=skipped), **training).warnings()  # type: ignore[arg-type]
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))


def test_option_one_does_not_go_with_another_objective() -> None:
    with pytest.raises(PolyclinicError, match="fedmix replaces the supervised loss"):
        build_workspace(sgd_recipe("fedmix+scaffold(option=I)"), tiny_task())


def test_an_overflow_in_half_precision_does_not_reach_a_control() -> None:
    component, weight = scaffold(), torch.nn.Parameter(torch.ones(3))
    component._parameters, component._correction, component._gradient = [weight], [torch.zeros(3)], None
    component._sum = torch.zeros(3)
    for gradient in (torch.full((3,), torch.inf), torch.tensor([1.0, 2.0, 3.0])):
        weight.grad = gradient
        component.on_gradients(SimpleNamespace(lr=0.5))  # type: ignore[arg-type]
    assert component._sum.tolist() == [0.5, 1, 1.5]
