from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.aggregation.consistent_updates import ConsistentUpdates
from polyclinic.components.base import Context
from polyclinic.components.rounds import ServerRound
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.recipe import TrainingSettings
from support import Interrupted, Keeper, Killer, assert_same, final_tensors, tiny_recipe, tiny_server, tiny_task

BUFFERS = frozenset({"running_mean", "num_batches_tracked"})
PARAMETERS = ("b.weight", "a.bias")
SITES = ("east", "north", "south", "west")


def heal(rounds: int = 20, **chosen: object) -> ConsistentUpdates:
    context = Context(tiny_task(), TrainingSettings(rounds=rounds))
    return ConsistentUpdates(ConsistentUpdates.Settings(**chosen), context)


def model(generator: torch.Generator, number: int = 0) -> Tensors:
    """Names are not in alphabetical order, as those of a network are not."""
    return {
        "b.weight": torch.randn(3, 2, generator=generator),
        "a.bias": torch.randn(4, generator=generator),
        "running_mean": torch.randn(2, generator=generator),
        "num_batches_tracked": torch.tensor(number),
    }


def server_of(previous: Tensors, sites: tuple[str, ...] = SITES, policy: str = "average") -> ServerRound:
    return ServerRound(
        0, 5, None, previous, sites, BUFFERS, policy, torch.Generator(), torch.device("cpu")  # type: ignore[arg-type]
    )  # fmt: skip


def updates_of(models: dict[str, Tensors], samples: dict[str, int] | None = None) -> Iterator[Update]:
    for site, weights in models.items():
        yield Update(site, 0, weights, (samples or {}).get(site, 3), 1)


class Naive:
    """FedHEAL element by element, with the history as exact fractions."""

    def __init__(self, sites: int, threshold: str, beta: float, mask_buffers: bool = False) -> None:
        self.threshold, self.beta, self.mask_buffers = Fraction(threshold), beta, mask_buffers
        self.start = 1 / sites
        self.signs: dict[tuple[str, str, int], list[int]] = {}
        self.weight: dict[str, float] = {}
        self.gain: dict[str, float] = {}

    def mask(self, site: str, name: str, index: int, difference: float) -> int:
        past = self.signs.setdefault((site, name, index), [])
        share = Fraction(sum(past), len(past)) if past else None
        past.append(int(difference >= 0))
        if share is None:
            return 1
        return int((share if difference >= 0 else 1 - share) > self.threshold)

    def round(self, previous: Tensors, models: dict[str, Tensors]) -> Tensors:
        names = [*PARAMETERS, "running_mean"]
        masks, distance = {}, dict.fromkeys(models, 0.0)
        for site, weights in models.items():
            for name in names:
                square = 0.0
                pairs = zip(previous[name].flatten().tolist(), weights[name].flatten().tolist(), strict=True)
                for index, (old, new) in enumerate(pairs):
                    kept = self.mask(site, name, index, old - new)
                    masks[site, name, index] = kept if name in PARAMETERS or self.mask_buffers else 1
                    square += masks[site, name, index] * (old - new) ** 2
                distance[site] += square**0.5 if name in PARAMETERS else 0.0
        total = sum(distance.values())
        for site in models:
            fraction = distance[site] / total if total else 0.0
            self.gain[site] = (1 - self.beta) * self.gain.get(site, 0.0) + self.beta * fraction
            self.weight[site] = self.weight.get(site, self.start) + self.gain[site]
        everybody = sum(self.weight[site] for site in models)
        result = {}
        for name in names:
            values = previous[name].double().flatten().clone()
            for index in range(len(values)):
                shares = {site: self.weight[site] / everybody * masks[site, name, index] for site in models}
                if sum(shares.values()) == 0:
                    continue
                for site, weights in models.items():
                    update = float(previous[name].flatten()[index]) - float(weights[name].flatten()[index])
                    values[index] -= shares[site] / sum(shares.values()) * update * masks[site, name, index]
            result[name] = values.view(previous[name].shape)
        return result


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 5), st.sampled_from(["0", "0.3", "0.5", "0.75"]),
    st.sampled_from([0.0, 0.4, 1.0]), st.booleans(), st.integers(0, 1000),
)  # fmt: skip
def test_rounds_are_the_equations_written_out(
    sites: int, rounds: int, threshold: str, beta: float, mask_buffers: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    part = heal(threshold=float(threshold), beta=beta, mask_buffers=mask_buffers)
    naive = Naive(sites, threshold, beta, mask_buffers)
    weights = model(generator)
    for _ in range(rounds):
        models = {site: model(generator, number) for number, site in enumerate(SITES[:sites])}
        wanted = naive.round(weights, models)
        weights = part.aggregate(server_of(weights, SITES[:sites]), updates_of(models))
        for name, tensor in wanted.items():
            torch.testing.assert_close(weights[name].double(), tensor, rtol=1e-5, atol=1e-6)
            assert weights[name].dtype == torch.float32
        for site in models:
            assert float(part.state[f"weight/{site}"]) == pytest.approx(naive.weight[site], rel=1e-5)
            assert float(part.state[f"gain/{site}"]) == pytest.approx(naive.gain[site], rel=1e-5)


def one(value: list[float]) -> Tensors:
    return {"w": torch.tensor(value)}


def test_a_small_example_by_hand() -> None:
    """Both sites fall everywhere; then north turns in the second weight, and both turn in the third."""
    part = heal(beta=0.0)
    first = part.aggregate(
        server_of(one([0.0, 0.0, 0.0])), updates_of({"north": one([-1.0, -1, -1]), "south": one([-3.0, -3, -3])})
    )
    assert first["w"].tolist() == [-2.0, -2.0, -2.0]
    second = part.aggregate(
        server_of(first), updates_of({"north": one([-3.0, 9.0, 9.0]), "south": one([-5.0, -6.0, 7.0])})
    )
    assert second["w"].tolist() == [-4.0, -6.0, -2.0], "mean of both, south alone, and nobody"


def test_the_distance_adds_norms_of_tensors_and_leaves_out_buffers() -> None:
    """3-4-5 triangles: north moves 5 in each of two tensors, south 10 in one, so both have distance 10."""
    zero = {"a": torch.zeros(2), "b": torch.zeros(2), "running_mean": torch.zeros(1)}
    north = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([4.0, 3.0]), "running_mean": torch.tensor([100.0])}
    south = {"a": torch.tensor([6.0, 8.0]), "b": torch.zeros(2), "running_mean": torch.zeros(1)}
    part = heal()
    part.aggregate(server_of(zero, ("north", "south")), updates_of({"north": north, "south": south}))
    assert float(part.state["weight/north"]) == pytest.approx(0.5 + 0.4 * 0.5)
    assert float(part.state["weight/south"]) == pytest.approx(0.5 + 0.4 * 0.5)


def test_a_site_that_moves_further_counts_more_and_weights_are_kept_as_they_are() -> None:
    part = heal()
    sites = ("north", "south")
    result = part.aggregate(server_of(one([0.0]), sites), updates_of({"north": one([1.0]), "south": one([3.0])}))
    assert result["w"].item() == pytest.approx((0.6 * 1 + 0.8 * 3) / 1.4)
    assert float(part.state["weight/north"]) == pytest.approx(0.5 + 0.1)
    assert float(part.state["weight/south"]) == pytest.approx(0.5 + 0.3)
    part.aggregate(server_of(one([0.0]), sites), updates_of({"north": one([1.0]), "south": one([1.0])}))
    assert float(part.state["weight/north"]) == pytest.approx(0.6 + (0.6 * 0.1 + 0.4 * 0.5))
    assert float(part.state["weight/south"]) == pytest.approx(0.8 + (0.6 * 0.3 + 0.4 * 0.5))


@pytest.mark.parametrize(("falls", "kept"), [(29, False), (30, True)])
def test_a_share_of_exactly_the_threshold_is_masked(falls: int, kept: bool) -> None:
    """0.29 * 100 is a little less than 29 as a float."""
    part = heal(threshold=0.29)
    part.state = {"falls/north": torch.tensor([falls], dtype=torch.int16), "rounds/north": torch.tensor(100)}
    result = part.aggregate(server_of(one([1.0]), ("north",)), updates_of({"north": one([0.0])}))
    assert result["w"].item() == (0.0 if kept else 1.0)


def test_an_update_of_exactly_zero_counts_as_falling_and_takes_part() -> None:
    part = heal(beta=0.0)
    part.aggregate(server_of(one([1.0])), updates_of({"north": one([1.0]), "south": one([0.0])}))
    assert part.state["falls/north"].tolist() == [1]
    result = part.aggregate(server_of(one([1.0])), updates_of({"north": one([1.0]), "south": one([0.0])}))
    assert result["w"].item() == 0.5


def test_a_site_that_skips_rounds_or_joins_late_has_a_history_of_its_own() -> None:
    part = heal(beta=0.0)
    for number, sites in enumerate((("north",), ("north", "south"), ("south",))):
        fall = {site: one([-1.0 - number]) for site in sites}
        part.aggregate(server_of(one([0.0])), updates_of(fall))
    assert {site: int(part.state[f"rounds/{site}"]) for site in ("north", "south")} == {"north": 2, "south": 2}
    turned = {"north": one([5.0]), "south": one([-5.0]), "west": one([7.0])}
    result = part.aggregate(server_of(one([0.0])), updates_of(turned))
    assert result["w"].item() == 1.0, "north is masked, west takes part for the first time"


@pytest.mark.parametrize("policy", ["average", "largest"])
def test_buffers_are_averaged_without_masks_and_integers_come_from_the_largest_site(policy: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weights, part = model(generator), heal()
    for _ in range(3):
        models = {site: model(generator, 10 + number) for number, site in enumerate(SITES[:3])}
        server = server_of(weights, policy=policy)
        weights = part.aggregate(server, updates_of(models, {"east": 2, "north": 9, "south": 9}))
        assert weights.keys() == server.previous.keys()
        assert weights["num_batches_tracked"].dtype == torch.int64
        assert int(weights["num_batches_tracked"]) == 11
        share = {site: float(part.state[f"weight/{site}"]) for site in models}
        mean = sum(share[site] * models[site]["running_mean"].double() for site in models) / sum(share.values())
        wanted = mean.float() if policy == "average" else models["north"]["running_mean"]
        torch.testing.assert_close(weights["running_mean"], wanted)


def test_without_masks_and_with_uniform_weights_it_is_the_uniform_mean_and_keeps_no_history() -> None:
    generator = torch.Generator().manual_seed(1)
    part = heal(threshold=-1, beta=0)
    for _ in range(3):
        models = {site: model(generator) for site in SITES}
        result = part.aggregate(server_of(model(generator)), updates_of(models))
        for name in (*PARAMETERS, "running_mean"):
            mean = torch.stack([weights[name].double() for weights in models.values()]).mean(0)
            torch.testing.assert_close(result[name], mean.float(), rtol=1e-6, atol=1e-7)
    assert {name.partition("/")[0] for name in part.state} == {"weight", "gain"}


def test_equal_models_nothing_moved_and_nobody_answered() -> None:
    generator = torch.Generator().manual_seed(2)
    previous, same = model(generator), model(generator)
    part = heal()
    assert_same(part.aggregate(server_of(previous), updates_of(dict.fromkeys(SITES, same))), same)
    still = heal()
    assert_same(still.aggregate(server_of(previous), updates_of(dict.fromkeys(SITES, previous))), previous)
    assert all(float(still.state[f"weight/{site}"]) == 0.25 for site in SITES)
    assert_same(heal().aggregate(server_of(previous), iter(())), previous)


def test_the_order_of_names_and_sites_does_not_matter() -> None:
    """A checkpoint that was read again, in the middle of a run, has its names in another order."""
    ends = []
    for turned in (False, True):
        generator = torch.Generator().manual_seed(4)
        part, weights = heal(), model(generator)
        for number in range(5):
            models = {site: model(generator) for site in SITES}
            if turned and number >= 2:
                weights = dict(sorted(weights.items()))
                models = {site: dict(reversed(w.items())) for site, w in reversed(models.items())}
            weights = part.aggregate(server_of(weights), updates_of(models))
        ends.append(weights)
    for name, tensor in ends[0].items():
        torch.testing.assert_close(ends[1][name], tensor, rtol=1e-6, atol=1e-7)


def test_updates_are_walked_through_once_and_let_go() -> None:
    generator = torch.Generator().manual_seed(5)
    alive: list[weakref.ref[Tensors]] = []

    class Weights(dict):  # type: ignore[type-arg]
        """A dict that can be watched."""

    def arriving() -> Iterator[Update]:
        for site in SITES:
            weights = Weights(model(generator))
            alive.append(weakref.ref(weights))
            update = Update(site, 0, weights, 1, 1)
            del weights
            yield update
            del update
            gc.collect()
            # The consumer may still hold the last one in its loop variable, never those before.
            assert not any(one() for one in alive[:-1])

    assert ConsistentUpdates.streams
    heal().aggregate(server_of(model(generator)), arriving())
    assert len(alive) == len(SITES)


def test_what_comes_in_is_not_changed_nor_is_the_state_of_the_round_before() -> None:
    generator = torch.Generator().manual_seed(6)
    part, previous = heal(), model(generator)
    part.aggregate(server_of(previous), updates_of({site: model(generator) for site in SITES}))
    before = dict(part.state)
    copies = {name: tensor.clone() for name, tensor in before.items()}
    models = {site: model(generator) for site in SITES}
    originals = [{n: t.clone() for n, t in one.items()} for one in (previous, *models.values())]
    part.aggregate(server_of(previous), updates_of(models))
    assert_same(before, copies)
    for tensors, original in zip((previous, *models.values()), originals, strict=True):
        assert_same(tensors, original)


@pytest.mark.parametrize(("rounds", "dtype"), [(200, torch.int16), (40_000, torch.int32)])
def test_the_history_takes_two_bytes_a_weight_unless_the_run_is_longer(rounds: int, dtype: torch.dtype) -> None:
    part = heal(rounds=rounds)
    for _ in range(2):
        part.aggregate(server_of(one([0.0])), updates_of({"north": one([-1.0])}))
        assert part.state["falls/north"].dtype == dtype


@pytest.mark.parametrize("dims", [2, 3])
def test_a_federation_masks_from_the_second_round_on(dims: int, tmp_path: Path) -> None:
    plain = tiny_server(tmp_path / "plain", tiny_recipe("fedheal(threshold=-1)"), dims)
    masked = tiny_server(tmp_path / "masked", tiny_recipe("fedheal"), dims)
    for server in (plain, masked):
        server.round()
    assert_same(plain.state.weights, masked.state.weights)
    for server in (plain, masked):
        server.round()
    assert any(not torch.equal(t, masked.state.weights[n]) for n, t in plain.state.weights.items())
    state = masked.state.components["consistent_updates"]
    values = sum(t.numel() for t in masked.state.weights.values() if t.is_floating_point())
    assert all(len(state[f"falls/{site}"]) == values for site in masked.sites)
    assert all(t.isfinite().all() for t in final_tensors(masked).values() if t.is_floating_point())


OTHERS = ["fedheal+cse", "fedheal+afa", "fedheal+local_norm", "fedheal+weight_noise", "fedheal+proximal(mu=0.1)"]


@pytest.mark.parametrize("method", OTHERS)
def test_it_goes_with_other_components(method: str, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(method, training={"rounds": 2}), observer=(keeper := Keeper()))
    server.fit()
    assert not keeper.refusals
    assert server.aggregator.name == "consistent_updates"
    assert all(t.isfinite().all() for t in server.state.weights.values() if t.is_floating_point())


@pytest.mark.parametrize("policy", ["average", "largest", "keep"])
def test_sites_that_come_and_go_and_a_kill_between_leave_the_same_model(policy: str, tmp_path: Path) -> None:
    sections: dict[str, dict[str, object]] = {
        "policies": {"buffers": policy},
        "training": {"rounds": 5, "local_epochs": 1, "participation": 2},
    }
    recipe = tiny_recipe("fedheal", seed=5, **sections)
    whole = tiny_server(tmp_path / "whole", recipe)
    whole.fit()
    killer = Killer(lambda what, number, _: what == "site" and number == 3)
    with pytest.raises(Interrupted):
        tiny_server(tmp_path / "killed", recipe, observer=killer).fit()
    resumed = tiny_server(tmp_path / "killed", recipe)
    resumed.fit()
    assert_same(final_tensors(whole), final_tensors(resumed))
    state = resumed.state.components["consistent_updates"]
    counted = [int(state[f"rounds/{site}"]) for site in resumed.sites]
    assert sum(counted) == 10
    assert min(counted) < 5
    assert counted == [sum(site in whole.choose(number) for number in range(5)) for site in whole.sites]
