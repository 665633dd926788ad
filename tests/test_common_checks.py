"""One suite over every registered method, present and future. A new method is checked by being registered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from mixed_sites import mixed_server
from polyclinic.components.registry import find_component
from polyclinic.engines.inprocess import InProcess
from polyclinic.exchange.messages import Broadcast, Failure, Update, tensor_bytes
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import find_method, methods
from support import SIZES, Interrupted, Keeper, Killer, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task

METHODS = list(methods())
SEMI = [name for name in METHODS if any(find_component(p.component).wants_unlabelled for p in find_method(name).parts)]
BOTH = pytest.mark.parametrize("dims", [2, 3])
EVERY = pytest.mark.parametrize("method", METHODS)
_uninterrupted: dict[tuple[str, int], dict[str, torch.Tensor]] = {}
_mixed: dict[str, dict[str, torch.Tensor]] = {}


def reference(method: str, dims: int, tmp_path: Path) -> dict[str, torch.Tensor]:
    """The result of a plain run, computed once for a method."""
    if (method, dims) not in _uninterrupted:
        server = tiny_server(tmp_path / "reference", tiny_recipe(method), dims)
        server.fit()
        _uninterrupted[method, dims] = final_tensors(server)
    return _uninterrupted[method, dims]


@EVERY
@BOTH
def test_same_seed_same_result_and_all_finite(method: str, dims: int, tmp_path: Path) -> None:
    """Data holds an empty mask, an absent class, a site of one image and one smaller than a batch."""
    server = tiny_server(tmp_path / "again", tiny_recipe(method), dims, observer=(keeper := Keeper()))
    server.fit()
    assert_same(reference(method, dims, tmp_path), final_tensors(server))
    assert not keeper.refusals
    for event in keeper.events:
        assert all(torch.tensor(v).isfinite() for terms in event["losses"].values() for v in terms.values())
    assert all(t.isfinite().all() for t in final_tensors(server).values() if t.is_floating_point())


@EVERY
def test_training_moves_every_site_and_the_seed_matters(method: str, tmp_path: Path) -> None:
    """Guards the other checks: a method that trains nothing would pass them all."""
    other = tiny_server(tmp_path / "other", tiny_recipe(method).model_copy(update={"seed": 1}))
    start = {**{f"global/{n}": t for n, t in other.state.weights.items()}}
    other.fit()
    moved = final_tensors(other)
    assert any(not torch.equal(start[n], moved[n]) for n in start) or any("/personal/" in n for n in moved)
    same_seed = reference(method, 2, tmp_path)
    assert any(not torch.equal(same_seed[n], moved[n]) for n in same_seed if same_seed[n].is_floating_point())


@EVERY
@BOTH
@pytest.mark.parametrize("moment", ["mid-round", "before-checkpoint"])
def test_kill_and_resume_equals_uninterrupted(method: str, dims: int, moment: str, tmp_path: Path) -> None:
    def when(what: str, number: int, _site: str) -> bool:
        return number == 1 and what == ("site" if moment == "mid-round" else "round")

    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "run", tiny_recipe(method), dims, observer=Killer(when)).fit()
    resumed = tiny_server(tmp_path / "run", tiny_recipe(method), dims)
    assert resumed.state.round == 1
    resumed.fit()
    assert_same(reference(method, dims, tmp_path), final_tensors(resumed))


class Rebuilding(InProcess):
    """Builds network, components and site anew from the saved state for every site and round."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for name in sites:
            workspace = build_workspace(self.workspace.recipe, self.workspace.task)
            old = self.sites[name]
            fresh = Site(old.data, type(old.store)(old.store.folder))
            yield from InProcess(workspace, {name: fresh}).train(broadcast, [name])


@EVERY
@BOTH
def test_a_site_rebuilt_every_round_equals_one_that_lived_on(method: str, dims: int, tmp_path: Path) -> None:
    server = tiny_server(tmp_path / "rebuilt", tiny_recipe(method), dims, engine=Rebuilding)
    server.fit()
    assert_same(reference(method, dims, tmp_path), final_tensors(server))


@EVERY
def test_one_site_degenerates_to_local_training(method: str, tmp_path: Path) -> None:
    """The global model of a federation of one is what that site trained."""
    spy = Spy(tmp_path, method, sizes={"north": 3})
    spy.server.round()
    (update,) = spy.updates
    components = spy.server.workspace.components
    for name, tensor in update.weights.items():
        if any(component.sets(name) for component in components):
            continue
        assert torch.equal(spy.server.state.weights[name], tensor), name


class Spy:
    """Runs a tiny federation and keeps every update that crossed the boundary."""

    def __init__(self, folder: Path, method: str, dims: int = 2, sizes: dict[str, int] | None = None, **sections: dict):  # type: ignore[type-arg]
        updates: list[Update] = []

        class Listening(InProcess):
            def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
                for answer in super().train(broadcast, sites):
                    assert isinstance(answer, Update), answer
                    updates.append(answer)
                    yield answer

        self.updates = updates
        self.keeper = Keeper()
        recipe = tiny_recipe(method, **sections)
        self.server = tiny_server(folder / "spied", recipe, dims, sizes, self.keeper, engine=Listening)


@EVERY
@BOTH
def test_what_leaves_is_what_is_declared_and_counted(method: str, dims: int, tmp_path: Path) -> None:
    spy = Spy(tmp_path, method, dims)
    spy.server.fit()
    workspace = spy.server.workspace
    assert len(spy.updates) == 3 * len(spy.server.sites)
    for update in spy.updates:
        assert update.weights.keys() == workspace.exchanged
        assert not update.weights.keys() & workspace.kept
        for component, declared in workspace.declared().items():
            shared = update.shared.get(component, {})
            assert shared.keys() == {one.name for one in declared}
            assert all(one.accepts(shared[one.name]) for one in declared)
        assert update.shared.keys() <= workspace.declared().keys()
    counted = sum(sum(event["bytes_up"].values()) for event in spy.keeper.events)
    crossed = sum(
        tensor_bytes(u.weights) + sum(tensor_bytes(tensors) for tensors in u.shared.values()) for u in spy.updates
    )
    assert counted == (0 if workspace.method.pooled else crossed)


@EVERY
@pytest.mark.parametrize("policy", ["average", "keep", "largest"])
def test_buffers_follow_the_policy(method: str, policy: str, tmp_path: Path) -> None:
    spy = Spy(tmp_path, method, policies={"buffers": policy})
    spy.server.round()
    network, weights = spy.server.workspace.network, spy.server.state.weights
    components = spy.server.workspace.components
    statistics = {
        n for n in network.buffer_names() if n.rpartition(".")[2] in _STATISTICS
    } & spy.server.workspace.exchanged
    if policy == "keep":
        assert not statistics
        assert not {n for n in network.buffer_names() & weights.keys() if not any(c.sets(n) for c in components)}
        return
    largest = max(spy.updates, key=lambda update: update.samples)
    for name in statistics:
        assert weights[name].dtype == network.state_dict()[name].dtype
        if policy == "largest" or not weights[name].is_floating_point():
            assert torch.equal(weights[name], largest.weights[name]), name


_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}


def strong_components(method: str) -> list[str]:
    return [p.component for p in find_method(method).parts if find_component(p.component).strength]


@EVERY
def test_a_method_with_a_strength_says_what_it_extends(method: str) -> None:
    """A method, or an expression where the aggregation stays another one."""
    assert not strong_components(method) or parse_method(find_method(method).extends or "").parts


@pytest.mark.parametrize("method", [name for name in METHODS if find_method(name).extends])
def test_strength_zero_equals_the_method_it_extends(method: str, tmp_path: Path) -> None:
    zeros = [f"+{name}({find_component(name).strength}=0)" for name in strong_components(method)]
    server = tiny_server(tmp_path / "zero", tiny_recipe(method + "".join(zeros)))
    server.fit()
    assert_same(reference(str(find_method(method).extends), 2, tmp_path), final_tensors(server))


@EVERY
def test_a_batch_of_one_and_unequal_sites_train(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, training={"batch_size": 1, "rounds": 1, "local_epochs": 1})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert sum(keeper.events[0]["samples"].values()) == sum(SIZES.values())


def mixed_reference(method: str, tmp_path: Path) -> dict[str, torch.Tensor]:
    """The result of a plain run over sites with few labels, none, and all."""
    if method not in _mixed:
        server = mixed_server(tmp_path / "reference", tiny_recipe(method), observer=(keeper := Keeper()))
        server.fit()
        assert not keeper.refusals
        _mixed[method] = final_tensors(server)
    return _mixed[method]


@pytest.mark.parametrize("method", SEMI)
def test_few_labels_kill_and_resume_equals_uninterrupted(method: str, tmp_path: Path) -> None:
    def when(what: str, number: int, site: str) -> bool:
        return (what, number, site) == ("site", 1, "south")

    with pytest.raises(Interrupted):
        mixed_server(tmp_path / "run", tiny_recipe(method), observer=Killer(when)).fit()
    resumed = mixed_server(tmp_path / "run", tiny_recipe(method))
    assert resumed.state.round == 1
    resumed.fit()
    assert_same(mixed_reference(method, tmp_path), final_tensors(resumed))


@pytest.mark.parametrize("method", SEMI)
def test_few_labels_a_site_rebuilt_every_round_equals_one_that_lived_on(method: str, tmp_path: Path) -> None:
    server = mixed_server(tmp_path / "rebuilt", tiny_recipe(method), engine=Rebuilding)
    server.fit()
    assert_same(mixed_reference(method, tmp_path), final_tensors(server))


@pytest.mark.parametrize("method", SEMI)
def test_few_labels_in_patches(method: str, tmp_path: Path) -> None:
    """A site without any label among them."""
    recipe = tiny_recipe(method, data={"patch": [4, 8]}, training={"rounds": 2, "local_epochs": 1})
    server = mixed_server(tmp_path, recipe, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert all(t.isfinite().all() for t in final_tensors(server).values() if t.is_floating_point())


@pytest.mark.parametrize("method", SEMI)
def test_unlabelled_images_change_the_result(method: str, tmp_path: Path) -> None:
    """Guards the two checks above: a component that never acts would pass them."""
    labelled = {"north": (3, 4), "south": (1, 2), "zone": (3, 0)}
    whole, alone = (
        mixed_server(tmp_path / name, tiny_recipe(name), labelled)
        for name in (method, str(find_method(method).extends))
    )
    for server in (whole, alone):
        server.fit()
    same = [torch.equal(whole.state.weights[n], t) for n, t in alone.state.weights.items() if t.is_floating_point()]
    assert not any(same)


@pytest.mark.parametrize("method", SEMI)
def test_few_labels_strength_zero_equals_the_method_it_extends(method: str, tmp_path: Path) -> None:
    labelled = {"north": (3, 4), "south": (1, 2), "zone": (3, 0)}
    zeros = [f"+{name}({find_component(name).strength}=0)" for name in strong_components(method)]
    off, plain = method + "".join(zeros), str(find_method(method).extends)
    servers = [mixed_server(tmp_path / str(n), tiny_recipe(one), labelled) for n, one in enumerate((off, plain))]
    for server in servers:
        server.fit()
    assert_same(*map(final_tensors, servers))


def test_network_of_a_task_is_the_same_in_every_process() -> None:
    first, second = (build_workspace(tiny_recipe(), tiny_task()).exchanged_weights() for _ in range(2))
    assert_same(first, second)
