from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.aggregation.fednova import FedNova, distance_of_ones
from polyclinic.components.aggregation.weighted_mean import WeightedMean
from polyclinic.components.base import BuiltMethod, Context
from polyclinic.components.objectives.proximal import Proximal
from polyclinic.components.rounds import ServerRound
from polyclinic.exchange.messages import Tensors, Update
from polyclinic.recipe import PolicySettings, TrainingSettings
from support import Keeping, tiny_recipe, tiny_server, tiny_task

BUFFERS = frozenset({"running_mean", "count"})
SITES = ("north", "south", "west")


def nova(weighting: str = "samples", mu: float = 0.0, **training: object) -> FedNova:
    chosen = {"optimizer": "sgd", "lr": 0.1, "local_epochs": 100, "batch_size": 1, **training}
    component = FedNova(FedNova.Settings(weighting=weighting), Context(tiny_task(), TrainingSettings(**chosen)))
    pull = Proximal(Proximal.Settings(mu=mu), component.context)
    component.check(BuiltMethod("nova", False, None, [component, pull], frozenset(), {}))  # type: ignore[arg-type]
    return component


def model(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        "b.weight": torch.randn(3, 2, generator=generator),
        "a.bias": torch.randn(2, generator=generator),
        "running_mean": torch.randn(2, generator=generator),
        "count": torch.tensor(seed),
    }


def server_of(previous: Tensors, policy: str = "average", number: int = 0) -> ServerRound:
    return ServerRound(
        number, 4, None, previous, SITES, BUFFERS, policy, torch.Generator(), torch.device("cpu")  # type: ignore[arg-type]
    )  # fmt: skip


def updates_of(steps: tuple[int, ...], samples: tuple[int, ...] = (3, 5, 1)) -> Iterator[Update]:
    for number, site in enumerate(SITES[: len(steps)]):
        yield Update(site, 0, model(number + 1), samples[number], steps[number])


@pytest.mark.parametrize("steps", [0, 1, 2, 7])
@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.05), (0.9, 0.05)])
def test_the_distance_is_the_papers_sum_of_the_gradients_weights(steps: int, momentum: float, pull: float) -> None:
    """Local steps are linear in the gradients: the weight of each is found by a step on that gradient alone."""
    total = 0.0
    for chosen in range(steps):
        place, velocity = 0.0, 0.0
        for step in range(steps):
            velocity = momentum * velocity + (step == chosen) + pull * place
            place -= velocity
        total -= place
    assert distance_of_ones(steps, momentum, pull) == pytest.approx(total, abs=1e-12)
    if not pull and steps:
        closed = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        assert total == pytest.approx(closed)
    if pull and not momentum:
        assert total == pytest.approx((1 - (1 - pull) ** steps) / pull)


def naive(previous: Tensors, updates: list[Update], distances: list[float], shares: list[float]) -> Tensors:
    """Equations 1 to 3, number by number."""
    result: Tensors = {}
    effective = sum(share * a for share, a in zip(shares, distances, strict=True))
    for name in ("b.weight", "a.bias"):
        old = previous[name].flatten().tolist()
        values = []
        for index, start in enumerate(old):
            moves = [
                share * (start - update.weights[name].flatten()[index].item()) / a if a else 0.0
                for update, share, a in zip(updates, shares, distances, strict=True)
            ]
            values.append(start - effective * sum(moves))
        result[name] = torch.tensor(values).reshape(previous[name].shape)
    return result


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9)),
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.booleans(),
)
def test_equations(steps: tuple[int, ...], samples: tuple[int, ...], momentum: float, uniform: bool) -> None:
    component = nova("uniform" if uniform else "samples", momentum=momentum)
    ours = component.aggregate(server_of(model(0)), updates_of(steps, samples))
    shares = [1 / 3] * 3 if uniform else [count / sum(samples) for count in samples]
    distances = [distance_of_ones(count, momentum, 0.0) for count in steps]
    wanted = naive(model(0), list(updates_of(steps, samples)), distances, shares)
    for name, tensor in wanted.items():
        torch.testing.assert_close(ours[name], tensor)
    mean = WeightedMean(WeightedMean.Settings(weighting="uniform" if uniform else "samples"), component.context)
    plain = mean.aggregate(server_of(model(0)), updates_of(steps, samples))
    assert all(torch.equal(ours[name], plain[name]) for name in BUFFERS)


def test_a_proximal_term_shortens_later_steps_at_the_rate_of_the_round() -> None:
    component = nova(mu=2.0, schedule="cosine", momentum=0.0)
    server = server_of(model(0), number=3)
    rate = 0.05 * (1 + torch.tensor(torch.pi * 3.5 / 4).cos().item())
    distances = [(1 - (1 - 2 * rate) ** count) / (2 * rate) for count in (4, 2, 1)]
    wanted = naive(model(0), list(updates_of((4, 2, 1))), distances, [3 / 9, 5 / 9, 1 / 9])
    ours = component.aggregate(server, updates_of((4, 2, 1)))
    torch.testing.assert_close(ours["b.weight"], wanted["b.weight"])


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
@pytest.mark.parametrize("policy", ["average", "largest"])
def test_equal_steps_are_fedavg(training: dict[str, object], policy: str) -> None:
    component = nova(**training)
    mean = WeightedMean(WeightedMean.Settings(), component.context)
    ours, wanted = (one.aggregate(server_of(model(0), policy), updates_of((7, 7, 7))) for one in (component, mean))
    for name, tensor in wanted.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=0)


def test_a_site_cannot_stretch_the_step_of_all_by_its_number_of_steps() -> None:
    component = nova(local_epochs=2, batch_size=2)  # honest: 2 epochs of 2, 3 and 1 batches
    honest = component.aggregate(server_of(model(0)), updates_of((4, 6, 2)))
    lying = component.aggregate(server_of(model(0)), updates_of((4, 6, 2**31 - 1)))
    assert all(torch.equal(honest[name], lying[name]) for name in honest)
    fixed = nova(local_epochs=2, steps_per_epoch=50)
    assert fixed._distance(server_of(model(0)), next(updates_of((2**31 - 1,)))) == 100


def test_a_run_away_pull_falls_back_to_the_number_of_steps() -> None:
    component = nova(mu=1e6)
    assert component._distance(server_of(model(0)), next(updates_of((60,)))) == 60


def test_nobody_with_samples_changes_nothing_but_buffers() -> None:
    ours = nova().aggregate(server_of(model(0)), updates_of((3, 2, 1), (0, 0, 0)))
    assert torch.equal(ours["b.weight"], model(0)["b.weight"])


@pytest.mark.parametrize(
    ("training", "policy", "words"),
    [
        ({}, "keep", []),
        ({"optimizer": "adamw"}, "keep", ["training.optimizer = adamw"]),
        ({"momentum": 0.9}, "keep", ["use reset"]),
        ({"momentum": 0.9}, "reset", []),
    ],
)
def test_warnings(training: dict[str, object], policy: str, words: list[str]) -> None:
    chosen = TrainingSettings(**{"optimizer": "sgd", **training})  # type: ignore[arg-type]
    context = Context(tiny_task(), chosen, PolicySettings(optimizer_state=policy))  # type: ignore[arg-type]
    said = FedNova(FedNova.Settings(), context).warnings()
    assert len(said) == len(words)
    assert all(word in sentence for word, sentence in zip(words, said, strict=True))


def test_the_proximal_term_of_the_method_is_found(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("fedprox+fednova+proximal(mu=0.3)"), engine=Keeping)
    assert [c._mu for c in server.components if isinstance(c, FedNova)] == [0.3]
