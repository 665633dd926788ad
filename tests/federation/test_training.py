from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mixed_sites import mixed_site
from polyclinic.components.base import Component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.segmentation_loss import segmentation_loss
from polyclinic.core.errors import PolyclinicError
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData, pool
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import build_workspace
from polyclinic.networks import load_weights
from support import Keeper, tiny_recipe, tiny_server, tiny_site, tiny_task
from temporary_components import known


def test_steps_per_epoch_sets_steps_and_progress_and_the_planned_steps(tmp_path: Path) -> None:
    seen: dict[str, list[float]] = {}

    class Clock(Component):
        """Notes where in the run each step is."""

        name = "clock"
        level = "objective"

        def after_step(self, step: Step) -> None:
            seen.setdefault(step.site.site, []).append(step.progress)

    with known(Clock):
        recipe = tiny_recipe("fedavg+clock+process_aware_mean", training={"steps_per_epoch": 4, "rounds": 3})
        server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
        updates = list(server.engine.train(Broadcast(1, server.state.weights), server.sites))
    assert not keeper.refusals
    wanted = [(1 + step / 8) / 3 for step in range(8)]
    assert list(seen) == ["north", "south", "west"]
    for update in updates:
        assert update.steps == int(update.shared["process_aware_mean"]["planned"]) == 8
        assert seen[update.site] == pytest.approx(wanted)
    with pytest.raises(PolyclinicError, match=r"training\.steps_per_epoch"):
        tiny_recipe(training={"steps_per_epoch": 0})


def test_pooled_images_take_the_steps_of_all_sites_together(tmp_path: Path) -> None:
    """So that ``central`` is a reference for methods that take them at every site."""
    steps = {}
    for method in ("fedavg", "central"):
        recipe, keeper = tiny_recipe(method, training={"steps_per_epoch": 4, "rounds": 1}), Keeper()
        tiny_server(tmp_path / method, recipe, observer=keeper).fit()
        steps[method] = keeper.events[0]["steps"]
    assert steps == {"fedavg": {"north": 8, "south": 8, "west": 8}, "central": {"pooled": 24}}
    by_walk, keeper = tiny_recipe("central", training={"rounds": 1}), Keeper()
    tiny_server(tmp_path / "walk", by_walk, observer=keeper).fit()
    assert keeper.events[0]["steps"] == {"pooled": 2 * 5}, "a walk over nine images in batches of two, as before"


def test_a_site_that_cannot_learn_adds_no_steps_to_pooled_images() -> None:
    sites = [mixed_site("north", 2, 1), mixed_site("south", 0, 2)]
    pooled = pool(sites, "pooled")
    assert (pooled.learning_sites(unlabelled=False), pooled.learning_sites(unlabelled=True)) == (1, 2)
    assert sites[1].learning_sites(unlabelled=False) == 0


def test_a_round_is_the_plain_pytorch_loop(tmp_path: Path) -> None:
    """FedAvg at a site, written out by hand: same batches, same steps, same weights, bit for bit."""
    training = {"clip_gradients": 0.5, "schedule": "cosine", "weight_decay": 0.01, "dice_classes": "foreground"}
    recipe = tiny_recipe(training=training)
    server = tiny_server(tmp_path, recipe)
    (update,) = server.engine.train(Broadcast(1, server.state.weights), ["north"])
    from polyclinic.core.seeds import generator_for

    workspace, data = build_workspace(recipe, tiny_task()), tiny_site("north", 5)
    network = workspace.network.train()
    load_weights(network, server.state.weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.01, fused=True)
    for epoch in range(2):
        order = torch.randperm(5, generator=generator_for(0, "north", 1, "batches", epoch))
        for index, rows in enumerate(order.split(2)):
            progress = (1 + (epoch + index / 3) / 2) / 3
            optimizer.param_groups[0]["lr"] = 0.01 * 0.5 * (1 + math.cos(math.pi * progress))
            images, labels = data.images.batch(rows)
            optimizer.zero_grad()
            segmentation_loss(network(images), labels, "dice-ce", "count", "foreground").backward()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, update.weights[name]), name


def second_round(tmp_path: Path, skipped: int = 0, **policies: str) -> tuple[dict[str, Tensor], SiteStore]:
    """Weights after two rounds at one site, with rounds in between that it skips."""
    workspace = build_workspace(tiny_recipe(training={"rounds": 9}, policies=policies), tiny_task())
    store = SiteStore(tmp_path / "-".join([str(skipped), *policies.values()]))
    site = Site(tiny_site("north", 4), store)
    first = site.train(workspace, Broadcast(0, workspace.exchanged_weights()))
    return site.train(workspace, Broadcast(1 + skipped, first.weights)).weights, store


def test_optimiser_state_is_kept_or_reset_by_policy(tmp_path: Path) -> None:
    kept, store = second_round(tmp_path, optimizer_state="keep")
    reset, empty = second_round(tmp_path, optimizer_state="reset")
    assert not torch.equal(kept["classifier.weight"], reset["classifier.weight"])
    assert int(store.load(before=9).optimizer["classifier.weight/step"]) == 8
    assert empty.load(before=9).optimizer == {}


def test_a_site_that_skipped_rounds_comes_back_as_the_policy_says(tmp_path: Path) -> None:
    _, kept = second_round(tmp_path, skipped=3, skipped_rounds="keep")
    _, reset = second_round(tmp_path, skipped=3, skipped_rounds="reset")
    _, present = second_round(tmp_path, skipped=0, skipped_rounds="reset")
    counts = [int(s.load(before=9).optimizer["classifier.weight/step"]) for s in (kept, reset, present)]
    assert counts == [8, 4, 8]


class Everything(Component):
    """Uses every hook of the site half and writes down the order."""

    name = "everything"
    level = "objective"
    wants_unlabelled = True
    calls: list[str] = []  # noqa: RUF012
    seen: dict[str, Any] = {}  # noqa: RUF012

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        self.calls.append("receive")
        self.teacher = site.frozen()
        self.seen["teacher"] = all(torch.equal(self.teacher.state_dict()[n], t) for n, t in site.received.items())

    def on_images(self, step: Step) -> None:
        self.calls.append("on_images")
        assert step.weak is not None
        assert step.strong is not None
        assert step.deformation is not None
        raw, _ = step.site.data.images.batch(step.unlabelled_indices)  # type: ignore[arg-type]
        self.seen["moved"] = torch.equal(step.deformation.apply(raw), step.weak)
        step.images = step.images * 0.5

    def loss(self, step: Step) -> dict[str, Tensor]:
        self.calls.append("loss")
        assert len(step.output.logits) == len(step.images) + len(step.strong)  # type: ignore[arg-type]
        self.seen["rows"] = (len(step.labelled.logits), len(step.unlabelled.logits))
        return {"unlabelled": step.unlabelled.logits.square().mean()}

    def on_gradients(self, step: Step) -> None:
        self.calls.append("on_gradients")
        before = [p.grad.clone() for p in step.network.parameters() if p.grad is not None]
        step.recompute()
        after = [p.grad for p in step.network.parameters() if p.grad is not None]
        self.seen["same"] = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(before, after, strict=True))

    def after_step(self, step: Step) -> None:
        self.calls.append("after_step")
        self.state["count"] = self.state.get("count", torch.tensor(0)) + 1

    def after_epoch(self, step: Step) -> None:
        self.calls.append("after_epoch")

    def share(self, site: SiteRound) -> dict[str, Tensor]:
        self.calls.append("share")
        self.seen["walked"] = sorted(int(i) for rows, _, _ in site.batches() for i in rows)
        self.seen["steps"] = site.steps
        return {}


def test_hooks_run_in_order_with_one_forward_for_labelled_and_unlabelled(tmp_path: Path) -> None:
    labelled, unlabelled = tiny_site("north", 4), tiny_site("north", 4, labelled=False)
    data = pool([labelled, unlabelled], "north")
    with known(Everything):
        recipe = tiny_recipe(
            "fedavg+everything",
            training={"local_epochs": 1, "batch_size": 4},
            augmentation={"flip": 0.5, "affine": 1.0, "noise": 1.0},
        )
        workspace = build_workspace(recipe, tiny_task())
        Everything.calls.clear()
        update = Site(SiteData("north", data.images, data.splits), SiteStore(tmp_path)).train(
            workspace, Broadcast(0, workspace.exchanged_weights())
        )
    once = ["on_images", "loss", "on_gradients", "loss", "after_step"]
    assert Everything.calls == ["receive", *once, *once, "after_epoch", "share"]
    assert Everything.seen["rows"] == (4, 4)
    assert Everything.seen["same"]
    assert Everything.seen["teacher"]
    assert Everything.seen["moved"]
    assert Everything.seen["walked"] == [0, 1, 2, 3, 6, 7, 8, 9]
    assert Everything.seen["steps"] == update.steps == 2
    assert update.samples == 8
    assert int(SiteStore(tmp_path).load(before=1).components["everything"]["count"]) == 2


def test_a_site_with_only_unlabelled_images_takes_part_when_a_component_learns_from_them(tmp_path: Path) -> None:
    with known(Everything):
        workspace = build_workspace(tiny_recipe("fedavg+everything"), tiny_task())
        site = Site(tiny_site("north", 3, labelled=False), SiteStore(tmp_path))
        update = site.train(workspace, Broadcast(0, workspace.exchanged_weights()))
    assert set(update.losses) == {"unlabelled"}
    assert Everything.seen["rows"] == (0, 2)


def test_a_divergent_site_is_left_out_and_comes_back_with_the_memory_before(tmp_path: Path) -> None:
    class Explode(Component):
        """Infinite loss at one site."""

        name = "explode"
        level = "objective"

        def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
            self.bad = site.site == "south"

        def loss(self, step: Step) -> dict[str, Tensor]:
            bad = self.bad and step.round == 1
            return {"explode": step.output.logits.sum() * (float("inf") if bad else 0.0)}

    with known(Explode):
        keeper = Keeper()
        server = tiny_server(tmp_path, tiny_recipe("fedavg+explode"), observer=keeper)
        server.fit()
    ((number, site, reason),) = keeper.refusals
    assert (number, site) == (1, "south")
    assert "the training diverged: " in reason
    assert "NaN or infinite" in reason
    assert all(t.isfinite().all() for t in server.state.weights.values())
    memory = SiteStore(tmp_path / "sites" / "south").load(before=9)
    assert memory.round == 2
    assert all(t.isfinite().all() for t in memory.optimizer.values())


def test_a_weight_that_the_server_sets_travels_and_is_never_averaged(tmp_path: Path) -> None:
    """AFA and FedFA in small: a module at a tap whose buffer is filled from what the sites share."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("level", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.level

    class Level(Component):
        """Shares a number, broadcasts the mean inside the network."""

        name = "level"
        level = "feature"

        def install(self, network: Any) -> None:
            network.insert("bottleneck", "shift", Shift())

        def sets(self, name: str) -> bool:
            return name == "taps.bottleneck.shift.level"

        def leaves(self, network: Any) -> tuple[Shared, ...]:
            return (Shared("mean", (), "the mean of the images"),)

        def share(self, site: SiteRound) -> dict[str, Tensor]:
            return {"mean": torch.tensor(float(len(site.site)))}

        def combine(self, server: ServerRound, shared: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
            level = torch.stack([tensors["mean"] for tensors in shared.values()]).mean()
            server.weights["taps.bottleneck.shift.level"] = level
            return {"level": level}

    with known(Level):
        server = tiny_server(tmp_path, tiny_recipe("fedavg+level", policies={"buffers": "keep"}))
        server.round()
        wanted = torch.tensor([5.0, 5.0, 4.0]).mean()
        assert torch.equal(server.state.weights["taps.bottleneck.shift.level"], wanted)
        assert torch.equal(server.state.shared["level"]["level"], wanted)
        (update, *_) = server.engine.train(Broadcast(1, server.state.weights, server.state.shared), ["north"])
        assert torch.equal(update.weights["taps.bottleneck.shift.level"], wanted)


def test_images_of_different_sizes_are_walked_over_one_by_one() -> None:
    images = [torch.rand(2, 8, 8), torch.rand(2, 8, 6)]
    labels = [torch.zeros(8, 8, dtype=torch.uint8), torch.zeros(8, 6, dtype=torch.uint8)]
    samples = tiny_site("north", 0).images.samples
    mixed = ImageSet(images, labels, torch.ones(2, dtype=torch.bool), samples)
    data = SiteData("north", mixed, {"train": torch.arange(2)})
    workspace = build_workspace(tiny_recipe(), tiny_task())
    site = SiteRound("north", 0, workspace.network, {}, data, workspace.device, torch.Generator(), 4)
    assert [tuple(x.shape) for _, x, _ in site.batches()] == [(1, 2, 8, 8), (1, 2, 8, 6)]
    assert list(site.batches(labelled=False)) == []


def atomic_write(kind: str) -> type[Component]:
    """A component that replaces the supervised loss."""

    class Replacing(Component):
        """Replaces."""

        name = kind
        level = "objective"

        def objective(self, step: Step) -> Tensor:
            return step.output.logits.square().mean()

    return Replacing


def test_one_component_may_replace_the_supervised_loss_and_two_may_not(tmp_path: Path) -> None:
    with known(atomic_write("first")), known(atomic_write("second")):
        server = tiny_server(tmp_path, tiny_recipe("fedavg+first", training={"rounds": 1}))
        server.fit()
        plain = tiny_server(tmp_path / "plain", tiny_recipe("fedavg", training={"rounds": 1}))
        plain.fit()
        name = "classifier.weight"
        assert not torch.equal(server.state.weights[name], plain.state.weights[name])
        with pytest.raises(PolyclinicError, match="first and second each replace the supervised loss"):
            build_workspace(tiny_recipe("fedavg+first+second"), tiny_task())


def test_a_term_may_not_take_the_name_of_another(tmp_path: Path) -> None:
    class Thief(Component):
        """Calls its term like the supervised loss."""

        name = "thief"
        level = "objective"

        def loss(self, step: Step) -> dict[str, Tensor]:
            return {"segmentation": step.output.logits.sum() * 0}

    with known(Thief), pytest.raises(PolyclinicError, match="two loss terms are called 'segmentation'"):
        tiny_server(tmp_path, tiny_recipe("fedavg+thief")).fit()


def test_components_know_the_size_that_the_network_trains_on() -> None:
    assert build_workspace(tiny_recipe(data={"size": [8, 8]}), tiny_task()).components[0].context.image_size == (8, 8)
    patched = build_workspace(tiny_recipe(data={"patch": [4, 4]}), tiny_task())
    assert patched.components[0].context.image_size == (4, 4)
    assert build_workspace(tiny_recipe(), tiny_task()).components[0].context.image_size is None
