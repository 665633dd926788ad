"""One suite over every registered method, present and future. A new method is checked by being registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import support
from mixed_sites import mixed_server
from polyclinic.components.registry import find_component
from polyclinic.deploy.site.admission import require_model
from polyclinic.engines.inprocess import InProcess
from polyclinic.engines.workers import Workers
from polyclinic.exchange.messages import Broadcast, Failure, Update, from_tensors, tensor_bytes, to_tensors
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.workspace import build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import find_method, methods
from polyclinic.recipe import Recipe
from support import (
    Interrupted,
    Keeper,
    Keeping,
    Killer,
    assert_same,
    final_tensors,
    tiny_recipe,
    tiny_task,
)

# As few steps as show everything: a last batch that is not full, a site smaller than a batch with a single image.
SIZES = {"north": 3, "south": 2, "west": 1}
tiny_server = partial(support.tiny_server, sizes=SIZES)

# Components that belong to no method are checked in the method they are made to be added to.
ADDED = (
    "fedavg+krum",
    "fedavg+median",
    "fedavg+trimmed_mean",
    "fedavg+norm_clipping",
    # Noise from the seed, because a secret would differ between two runs; the tiny network has buffers.
    "fedavg+privacy(seeded=true,uncovered=allow)",
    "fedavg+randconv",
    "fedavg+lddg",
)
METHODS = [*methods(), *ADDED]
# In three dimensions a kill and a rebuild from disk are tried for one method of each kind: plain, kept weights, feature
# modules with prototypes, statistics set by the server, teachers, models of the round before, recomputation, volumes.
KINDS = ("fedavg", "fedbn", "fedbcs", "pathfl", "fgasl", "moon", "harmofl", "fsf3a")


def method_parts(method: str) -> list[str]:
    return [part.component for part in parse_method(method).parts]


def extended(method: str) -> str | None:
    """What a method is when its components have no strength, if that is another method."""
    if method in ADDED:
        return "fedavg" if strong_components(method) else None
    return find_method(method).extends


SEMI = [name for name in methods() if any(find_component(p).wants_unlabelled for p in method_parts(name))]
EVERY = pytest.mark.parametrize("method", METHODS)
EVERY_2D_AND_3D = pytest.mark.parametrize(("method", "dims"), [(name, dims) for name in METHODS for dims in (2, 3)])
EVERY_2D_AND_KINDS_3D = pytest.mark.parametrize(
    ("method", "dims"), [*((name, 2) for name in METHODS), *((name, 3) for name in KINDS)]
)


# In three dimensions patches of voxels that are longer along the first axis, with a network that follows it.
ANISOTROPIC: dict[str, dict[str, Any]] = {
    "data": {"patch": [4, 8, 8]},
    "network": {"poolings": [[1, 2, 2], [2, 2, 2]], "kernels": [[1, 3, 3], [3, 3, 3], [3, 3, 3]]},
}


def recipe_in(dims: int, method: str, **sections: Any) -> Recipe:
    return tiny_recipe(method, **(ANISOTROPIC if dims == 3 else {}), **sections)


@dataclass
class Reference:
    """A plain run: what it ends with, what it had after its first round, and everything that crossed the boundary."""

    server: Server
    keeper: Keeper
    updates: list[Update]
    after_one_round: dict[str, torch.Tensor]
    result: dict[str, torch.Tensor]


_references: dict[tuple[str, int], Reference] = {}
_mixed: dict[str, dict[str, torch.Tensor]] = {}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Reference]:
    """``references(method, dims)``: computed once for a method."""

    def reference(method: str, dims: int = 2) -> Reference:
        if (method, dims) not in _references:
            folder, keeper = tmp_path_factory.mktemp("reference"), Keeper()
            server = tiny_server(folder, recipe_in(dims, method), dims, observer=keeper, engine=Keeping)
            server.round()
            first = final_tensors(server)
            server.fit()
            updates = server.engine.updates  # type: ignore[attr-defined]
            _references[method, dims] = Reference(server, keeper, updates, first, final_tensors(server))
        return _references[method, dims]

    return reference


References = Callable[..., Reference]


@EVERY_2D_AND_3D
def test_a_site_elsewhere_takes_what_the_server_sends(method: str, dims: int, references: References) -> None:
    """Weights of the model that the recipe builds, and for each component what it declares."""
    server = references(method, dims).server
    sent = Broadcast(server.state.round, server.state.weights, server.state.shared)
    require_model(server.workspace, from_tensors(*to_tensors(sent)))  # type: ignore[arg-type]
    for component in server.workspace.components:
        assert bool(component.comes_back) or not component.returns(server.workspace.network)


@EVERY_2D_AND_3D
def test_nothing_is_refused_and_all_is_finite(method: str, dims: int, references: References) -> None:
    """Data holds an empty mask, an absent class, a site of one image and one smaller than a batch."""
    reference = references(method, dims)
    assert not reference.keeper.refusals
    for event in reference.keeper.events:
        assert all(torch.tensor(v).isfinite() for terms in event["losses"].values() for v in terms.values())
    assert all(t.isfinite().all() for t in reference.result.values() if t.is_floating_point())


@EVERY
def test_same_seed_same_result_in_worker_processes(method: str, references: References, tmp_path: Path) -> None:
    """In three dimensions the two checks below say the same of one method of each kind, in one process."""
    again = tiny_server(tmp_path / "again", tiny_recipe(method, engine={"workers": 2}), engine=Workers)
    again.fit()
    assert_same(references(method).result, final_tensors(again))
    again.engine.close()


@EVERY
def test_training_moves_every_site_and_the_seed_matters(method: str, references: References, tmp_path: Path) -> None:
    """Guards the other checks: a method that trains nothing would pass them all."""
    other = tiny_server(tmp_path / "other", tiny_recipe(method).model_copy(update={"seed": 1}))
    start = {f"global/{n}": t for n, t in other.state.weights.items()}
    other.round()
    moved = final_tensors(other)
    assert any(not torch.equal(start[n], moved[n]) for n in start) or any("/personal/" in n for n in moved)
    same_seed = references(method).after_one_round
    assert any(not torch.equal(same_seed[n], moved[n]) for n in same_seed if same_seed[n].is_floating_point())


def meant_to_be_longer(method: str, dims: int) -> Recipe:
    """The recipe with more rounds, if no component says that their number changes what it does."""
    recipe = recipe_in(dims, method)
    components = build_workspace(recipe, tiny_task(dims)).components
    longer = recipe_in(dims, method, training={"rounds": 50})
    return recipe if any(c.depends_on_rounds for c in components) else longer


@EVERY_2D_AND_KINDS_3D
def test_killed_twice_and_resumed_equals_uninterrupted(
    method: str, dims: int, references: References, tmp_path: Path
) -> None:
    """In the middle of the second round, then at its end before the checkpoint is written.

    A method that does not say that it depends on the number of rounds may have been meant to be a longer run.
    """
    started = meant_to_be_longer(method, dims)
    for moment in ("site", "round"):
        killer = Killer(lambda what, number, _site, moment=moment: number == 1 and what == moment)
        with pytest.raises(Interrupted):
            tiny_server(tmp_path / "run", started, dims, observer=killer).fit()
    resumed = tiny_server(tmp_path / "run", recipe_in(dims, method), dims)
    assert resumed.state.round == 1
    resumed.fit()
    assert_same(references(method, dims).result, final_tensors(resumed))


class Rebuilding(InProcess):
    """Builds network, components and site anew from the saved state for every site and round."""

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for name in sites:
            workspace = build_workspace(self.workspace.recipe, self.workspace.task)
            old = self.sites[name]
            fresh = Site(old.data, type(old.store)(old.store.folder))
            engine = InProcess(workspace, {name: fresh})
            yield from engine.train(broadcast, [name])
            engine.settle()


@EVERY_2D_AND_KINDS_3D
def test_a_site_rebuilt_every_round_equals_one_that_lived_on(
    method: str, dims: int, references: References, tmp_path: Path
) -> None:
    server = tiny_server(tmp_path / "rebuilt", recipe_in(dims, method), dims, engine=Rebuilding)
    server.fit()
    assert_same(references(method, dims).result, final_tensors(server))


@EVERY
def test_one_site_degenerates_to_local_training(method: str, tmp_path: Path) -> None:
    """The global model of a federation of one is what that site trained."""
    server = tiny_server(tmp_path, tiny_recipe(method), sizes={"north": 3}, engine=Keeping)
    server.round()
    (update,) = server.engine.updates  # type: ignore[attr-defined]
    clips = "norm_clipping" in method_parts(method)
    for name, tensor in update.weights.items():
        if any(component.sets(name) for component in server.workspace.components) or clips:
            continue
        assert torch.equal(server.state.weights[name], tensor), name


@EVERY_2D_AND_3D
def test_what_leaves_is_what_is_declared_and_counted(method: str, dims: int, references: References) -> None:
    reference = references(method, dims)
    workspace = reference.server.workspace
    assert len(reference.updates) == 3 * len(reference.server.sites)
    for update in reference.updates:
        assert update.weights.keys() == workspace.exchanged
        assert not update.weights.keys() & workspace.kept
        for component, declared in workspace.declared().items():
            shared = update.shared.get(component, {})
            assert shared.keys() == {declaration.name for declaration in declared}
            assert all(declaration.accepts(shared[declaration.name]) for declaration in declared)
        assert update.shared.keys() <= workspace.declared().keys()
    counted = sum(sum(event["bytes_up"].values()) for event in reference.keeper.events)
    crossed = sum(
        tensor_bytes(u.weights) + sum(tensor_bytes(tensors) for tensors in u.shared.values()) for u in reference.updates
    )
    assert counted == (0 if workspace.method.pooled else crossed)


@EVERY
@pytest.mark.parametrize("policy", ["average", "keep", "largest"])
def test_buffers_follow_the_policy(method: str, policy: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, policies={"buffers": policy}, training={"local_epochs": 1})
    server = tiny_server(tmp_path, recipe, engine=Keeping)
    server.round()
    network, weights, components = server.workspace.network, server.state.weights, server.workspace.components
    statistics = {n for n in network.buffer_names() if n.rpartition(".")[2] in _STATISTICS}
    statistics &= server.workspace.exchanged
    if policy == "keep":
        assert not statistics
        assert not {n for n in network.buffer_names() & weights.keys() if not any(c.sets(n) for c in components)}
        return
    updates: list[Update] = server.engine.updates  # type: ignore[attr-defined]
    # Krum takes one site's model whole, whatever its size.
    sources = updates if "krum" in method_parts(method) else [max(updates, key=lambda update: update.samples)]
    for name in statistics:
        assert weights[name].dtype == network.state_dict()[name].dtype
        if policy == "largest" or not weights[name].is_floating_point():
            assert any(torch.equal(weights[name], update.weights[name]) for update in sources), name


_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}


def strong_components(method: str) -> list[str]:
    return [name for name in method_parts(method) if find_component(name).strength]


@EVERY
def test_a_method_with_a_strength_says_what_it_extends(method: str) -> None:
    """A method, or an expression where the aggregation stays another one."""
    assert not strong_components(method) or parse_method(extended(method) or "").parts


@pytest.mark.parametrize("method", [m for m in METHODS if extended(m)])
def test_strength_zero_equals_the_method_it_extends(method: str, references: References, tmp_path: Path) -> None:
    zeros = [f"+{name}({find_component(name).strength}=0)" for name in strong_components(method)]
    server = tiny_server(tmp_path / "zero", tiny_recipe(method + "".join(zeros)))
    server.fit()
    assert_same(references(str(extended(method))).result, final_tensors(server))


@EVERY
def test_a_batch_of_one_and_unequal_sites_train(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, training={"batch_size": 1, "rounds": 1, "local_epochs": 1})
    server = tiny_server(tmp_path, recipe, observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert sum(keeper.events[0]["samples"].values()) == sum(SIZES.values())


@pytest.mark.parametrize("method", [name for name in METHODS if name != "local"])  # which has no global weights
def test_mixed_precision_takes_nearly_the_same_way(method: str, references: References, tmp_path: Path) -> None:
    """With bfloat16 in the network's passes, the only mixed precision that a processor has; weights stay in float32."""
    server = tiny_server(tmp_path, tiny_recipe(method, training={"amp": "bfloat16"}), observer=(keeper := Keeper()))
    start = server.state.weights
    server.round()
    assert not keeper.refusals
    single, halved = (
        torch.cat([(end[f"global/{n}"] - t).flatten() for n, t in start.items() if t.is_floating_point()])
        for end in (references(method).after_one_round, final_tensors(server))
    )
    assert halved.isfinite().all()
    assert not torch.equal(single, halved)
    assert torch.cosine_similarity(single, halved, 0) > 0.8


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
        mixed_server(tmp_path / "run", meant_to_be_longer(method, 2), observer=Killer(when)).fit()
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


# Without the site that has no label at all, where a supervised method could not train.
WITH_LABELS = {"north": (3, 4), "south": (1, 2), "zone": (3, 0)}


def plain_result(method: str, tmp_path: Path) -> dict[str, torch.Tensor]:
    """What the method that a semi-supervised one extends makes of the labelled images, computed once on a worker."""
    if (plain := str(extended(method))) not in _mixed:
        server = mixed_server(tmp_path / "plain", tiny_recipe(plain), WITH_LABELS)
        server.fit()
        _mixed[plain] = final_tensors(server)
    return _mixed[plain]


@pytest.mark.parametrize("method", SEMI)
def test_unlabelled_images_change_the_result(method: str, tmp_path: Path) -> None:
    """Guards the two checks above: a component that never acts would pass them."""
    server = mixed_server(tmp_path / "whole", tiny_recipe(method), WITH_LABELS)
    server.fit()
    plain = plain_result(method, tmp_path)
    weights = {f"global/{n}": t for n, t in server.state.weights.items() if t.is_floating_point()}
    assert not any(torch.equal(tensor, plain[name]) for name, tensor in weights.items())


@pytest.mark.parametrize("method", SEMI)
def test_few_labels_strength_zero_equals_the_method_it_extends(method: str, tmp_path: Path) -> None:
    zeros = [f"+{name}({find_component(name).strength}=0)" for name in strong_components(method)]
    server = mixed_server(tmp_path / "zero", tiny_recipe(method + "".join(zeros)), WITH_LABELS)
    server.fit()
    assert_same(plain_result(method, tmp_path), final_tensors(server))


def test_network_of_a_task_is_the_same_in_every_process() -> None:
    first, second = (build_workspace(tiny_recipe(), tiny_task()).exchanged_weights() for _ in range(2))
    assert_same(first, second)
