from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.components.images.amplitude_normalisation import AmplitudeWindow
from polyclinic.core.errors import PolyclinicError
from polyclinic.engines.inprocess import InProcess
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.exchange.messages import Broadcast, Failure, Update
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import build_workspace
from support import assert_same, final_tensors, tiny_recipe, tiny_server, tiny_site, tiny_task

AMPLITUDE = "taps.input.amplitude_normalisation.amplitude"
COUNT = "taps.input.amplitude_normalisation.count"


# ---- the amplitude, against a full transform with abs and angle --------------------------------------------------


def frequencies(n: int) -> np.ndarray:
    """The signed frequency of each coefficient along an axis of ``fft``."""
    return np.array([k if k <= n // 2 else k - n for k in range(n)])


def inside(size: Sequence[int], trained: Sequence[int], window: float) -> np.ndarray:
    """Frequencies of an image of ``size`` that lie in the window of the size that was trained on."""
    axes = [
        (np.abs(frequencies(n)) <= window * (t // 2) + 1e-9) & ((n == t) | (2 * np.abs(frequencies(n)) < n))
        for n, t in zip(size, trained, strict=True)
    ]
    return np.logical_and.reduce(np.meshgrid(*axes, indexing="ij"))


def full(values: torch.Tensor) -> np.ndarray:
    axes = tuple(range(2, values.dim()))
    return np.fft.fftn(values.double().numpy(), axes=axes) / np.prod(values.shape[2:])


def replaced(values: torch.Tensor, amplitude: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Own phase everywhere, ``amplitude`` ``(channel, *spatial)`` where the mask is true."""
    spectrum = full(values)
    new = np.where(mask, amplitude, np.abs(spectrum)) * np.exp(1j * np.angle(spectrum))
    axes = tuple(range(2, values.dim()))
    return np.real(np.fft.ifftn(new * np.prod(values.shape[2:]), axes=axes))


def learned(module: AmplitudeWindow, *batches: torch.Tensor) -> torch.Tensor:
    """What the module makes of the last batch while it learns from all of them."""
    module.train()
    for batch in batches:
        module.learning = True
        result = module(batch)
    return result


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.3


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(2, 9), min_size=2, max_size=3),
    st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 1.0]),
    st.integers(0, 1000),
)
def test_own_phase_and_the_mean_amplitude_of_the_batch(size: list[int], window: float, seed: int) -> None:
    batch = images(3, 2, *size, seed=seed)
    module = AmplitudeWindow(2, window, 0.1, size)
    result = learned(module, batch)
    wanted = replaced(batch, np.abs(full(batch)).mean(0), inside(size, size, window))
    np.testing.assert_allclose(result.numpy(), wanted, atol=2e-5)
    other = images(2, 2, *size, seed=seed + 1)
    np.testing.assert_allclose(
        module.eval()(other).numpy(),
        replaced(other, np.abs(full(batch)).mean(0), inside(size, size, window)),
        atol=2e-5,
    )


@pytest.mark.parametrize("window", [0.5, 1.0])
def test_the_window_is_as_large_as_it_says(window: float) -> None:
    size = (8, 7)
    kept = inside(size, size, window)
    assert AmplitudeWindow(1, window, 0.1, size).amplitude[0].numel() == kept[:, : 7 // 2 + 1].sum()


@pytest.mark.parametrize("dims", [2, 3])
def test_frequency_zero_alone_moves_the_mean_and_keeps_its_sign(dims: int) -> None:
    batch = images(3, 2, *[5] * dims) - 0.3
    batch[0, 0] -= 2.0
    axes = tuple(range(2, 2 + dims))
    means = batch.mean(axes)
    assert (means < 0).any()
    assert (means > 0).any()
    result = learned(AmplitudeWindow(2, 0.0, 0.1, None), batch)
    torch.testing.assert_close(result.mean(axes), means.sign() * means.abs().mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        result - result.mean(axes, keepdim=True), batch - batch.mean(axes, keepdim=True), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("window", [0.0, 1.0])
def test_a_coefficient_of_zero_has_phase_zero_and_a_finite_gradient(window: float) -> None:
    module = AmplitudeWindow(1, window, 0.1, (4, 4))
    learned(module, images(2, 1, 4, 4))
    blank = torch.zeros(1, 1, 4, 4, requires_grad=True)
    result = module.eval()(blank)
    result.square().sum().backward()
    amplitude = np.abs(full(images(2, 1, 4, 4))).mean(0)
    wanted = replaced(blank.detach(), amplitude, inside((4, 4), (4, 4), window))
    np.testing.assert_allclose(result.detach().numpy(), wanted, atol=1e-6)
    assert float(result.detach().mean()) > 0
    assert blank.grad is not None
    assert blank.grad.isfinite().all()


@pytest.mark.parametrize("size", [(12, 10), (6, 5), (3, 2)])
def test_another_size_gets_the_frequencies_that_both_have(size: tuple[int, int]) -> None:
    trained = (9, 8)
    batch, other = images(3, 1, *trained), images(2, 1, *size, seed=1)
    module = AmplitudeWindow(1, 0.75, 0.1, trained)
    learned(module, batch)
    rows, columns = (np.array(frequencies(n)) for n in size)
    known = np.abs(full(batch)).mean(0)
    placed = np.zeros((1, *size))
    mask = inside(size, trained, 0.75)
    for (i, j), hit in np.ndenumerate(mask):
        if hit:
            placed[:, i, j] = known[:, rows[i] % trained[0], columns[j] % trained[1]]
    np.testing.assert_allclose(module.eval()(other).numpy(), replaced(other, placed, mask), atol=2e-5)


def test_the_whole_spectrum_refuses_another_size_and_a_window_needs_a_size() -> None:
    module = AmplitudeWindow(1, 1.0, 0.1, (8, 8))
    with pytest.raises(PolyclinicError, match=r"size \[9, 8\].*size \[8, 8\]"):
        module(torch.zeros(1, 1, 9, 8))
    with pytest.raises(PolyclinicError, match=r"window=0.5.*data\.size"):
        build_workspace(tiny_recipe("harmofl(window=0.5)"), tiny_task())
    with pytest.raises(PolyclinicError, match=r"\[9, 8\].*multiples of \[\d+"):
        build_workspace(tiny_recipe("harmofl(window=1)", data={"size": [9, 8]}), tiny_task())
    build_workspace(tiny_recipe("harmofl(window=0.5)", data={"size": [9, 8]}), tiny_task())


def test_half_precision_around_it_changes_nothing() -> None:
    module = AmplitudeWindow(1, 1.0, 0.1, (6, 6))
    batch = images(2, 1, 6, 6)
    wanted = learned(module, batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module.eval()(batch), wanted)


# ---- what is learned, and when -----------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("momentum", [0.1, 0.0])
def test_running_average_step_by_step(window: float, momentum: float) -> None:
    """The first batch initialises; momentum 0 keeps it alone, as the released helper does."""
    size = (6, 5)
    batches = [images(3, 2, *size, seed=seed) for seed in range(4)]
    module = AmplitudeWindow(2, window, momentum, size)
    assert torch.equal(module.eval()(batches[0]), batches[0])
    module.train()
    assert torch.equal(module(batches[0]), batches[0])
    average = np.abs(full(batches[0])).mean(0)
    for number, batch in enumerate(batches):
        if number:
            average = (1 - momentum) * average + momentum * np.abs(full(batch)).mean(0)
        result = learned(module, batch)
        wanted = replaced(batch, average, inside(size, size, window))
        np.testing.assert_allclose(result.numpy(), wanted, atol=2e-5)
        again = module(batch)
        assert torch.equal(again, result), "a second pass of the step must not count"
        assert int(module.count) == number + 1
    module.eval().learning = True
    module(batches[0])
    assert int(module.count) == len(batches)


class Watching(InProcess):
    """Keeps every update, and every batch that reached the amplitude normalisation in train mode, by site."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.updates: list[Update] = []
        self.batches: dict[tuple[int, str], list[torch.Tensor]] = {}

    def train(self, broadcast: Broadcast, sites: Sequence[str]) -> Iterator[Update | Failure]:
        for name in sites:
            seen = self.batches.setdefault((broadcast.round, name), [])
            module = self.workspace.network.taps["input"].amplitude_normalisation
            handle = module.register_forward_pre_hook(
                lambda module, inputs, seen=seen: seen.append(inputs[0].clone()) if module.training else None
            )
            answers = list(super().train(broadcast, [name]))
            handle.remove()
            self.updates += [answer for answer in answers if isinstance(answer, Update)]
            yield from answers


def amplitudes(engine: Watching, round_number: int) -> list[torch.Tensor]:
    """What the sites shared in a round: one amplitude each in the first, none later."""
    shared = [u.shared["amplitude_normalisation"] for u in engine.updates if u.round == round_number]
    assert all(len(tensors["amplitude"]) == len(tensors["count"]) <= 1 for tensors in shared)
    return [row for tensors in shared for row in tensors["amplitude"]]


def used(engine: Watching, round_number: int) -> list[torch.Tensor]:
    """The amplitudes in the sites' models after a round."""
    return [update.weights[AMPLITUDE] for update in engine.updates if update.round == round_number]


def watched(server: Server) -> Watching:
    assert isinstance(server.engine, Watching)
    return server.engine


def test_a_federation_learns_in_the_first_round_and_is_fixed_afterwards(tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("harmofl"), engine=Watching)
    server.round()
    engine, own = watched(server), amplitudes(watched(server), 0)
    for update, amplitude in zip(engine.updates, own, strict=True):
        batches = engine.batches[0, update.site]
        assert len(batches) == 2 * update.steps, "two passes a step"
        average = None
        for first, second in zip(batches[::2], batches[1::2], strict=True):
            assert torch.equal(first, second)
            mean = first.mean((2, 3)).abs().mean(0)
            average = mean if average is None else 0.9 * average + 0.1 * mean
        torch.testing.assert_close(amplitude, average)
        assert int(update.shared["amplitude_normalisation"]["count"]) == update.steps
    common = server.state.weights[AMPLITUDE].clone()
    torch.testing.assert_close(common, sum(own) / 3)
    assert int(server.state.weights[COUNT]) == sum(update.steps for update in engine.updates)
    server.fit()
    assert torch.equal(server.state.weights[AMPLITUDE], common)
    assert int(server.state.weights[COUNT]) == sum(update.steps for update in engine.updates if update.round == 0)
    assert all(torch.equal(one, common) for number in (1, 2) for one in used(engine, number))
    assert [amplitudes(engine, number) for number in (1, 2)] == [[], []], "shared once"
    assert not any(torch.equal(one, common) for one in own)


def test_a_site_that_joins_later_uses_the_common_amplitude(tmp_path: Path) -> None:
    recipe = tiny_recipe("harmofl", training={"participation": 2, "rounds": 4})
    server = tiny_server(tmp_path, recipe, engine=Watching)
    server.fit()
    by_round = [{u.site for u in watched(server).updates if u.round == number} for number in range(4)]
    assert set.union(*by_round[1:]) - by_round[0], "this seed must bring a new site after the first round"
    common = server.state.weights[AMPLITUDE]
    torch.testing.assert_close(common, sum(amplitudes(watched(server), 0)) / 2)
    assert all(torch.equal(one, common) for number in (1, 2, 3) for one in used(watched(server), number))
    assert not any(amplitudes(watched(server), number) for number in (1, 2, 3))


def test_the_server_leaves_out_a_site_that_saw_nothing_and_undoes_what_the_aggregation_did() -> None:
    workspace = build_workspace(tiny_recipe("harmofl"), tiny_task())
    part = next(c for c in workspace.components if c.name == "amplitude_normalisation")
    shared = {
        "a": {"amplitude": torch.tensor([[1.0, 2.0]]), "count": torch.tensor([3])},
        "b": {"amplitude": torch.tensor([[3.0, 6.0]]), "count": torch.tensor([1])},
        "c": {"amplitude": torch.zeros(1, 2), "count": torch.tensor([0])},
        "d": {"amplitude": torch.zeros(0, 2), "count": torch.zeros(0, dtype=torch.int64)},
    }
    noisy = {AMPLITUDE: torch.full((2,), 9.0), COUNT: torch.tensor(7)}

    def combined(previous: dict[str, torch.Tensor], sites: str) -> dict[str, torch.Tensor]:
        server = type("Round", (), {"previous": previous, "weights": dict(noisy)})()
        assert part.combine(server, {site: shared[site] for site in sites}) == {}
        found: dict[str, torch.Tensor] = server.weights
        return found

    nothing = {AMPLITUDE: torch.zeros(2), COUNT: torch.tensor(0)}
    assert_same(combined(nothing, "abcd"), {AMPLITUDE: torch.tensor([2.0, 4.0]), COUNT: torch.tensor(4)})
    assert_same(combined(nothing, "c"), nothing)
    known = {AMPLITUDE: torch.tensor([5.0, 5.0]), COUNT: torch.tensor(2)}
    assert_same(combined(known, "abc"), known)


@pytest.mark.parametrize("policy", ["average", "keep", "largest"])
def test_the_buffers_travel_under_any_policy(policy: str, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe("harmofl", policies={"buffers": policy}), engine=Watching)
    assert {AMPLITUDE, COUNT} <= server.workspace.exchanged
    server.round()
    torch.testing.assert_close(server.state.weights[AMPLITUDE], sum(amplitudes(watched(server), 0)) / 3)


@pytest.mark.parametrize("method", ["local+amplitude_normalisation", "harmofl+no_exchange"])
def test_without_exchange_every_site_keeps_its_own_and_shares_it_once(method: str, tmp_path: Path) -> None:
    server = tiny_server(tmp_path, tiny_recipe(method), engine=Watching)
    server.round()
    own = amplitudes(watched(server), 0)
    server.fit()
    assert not torch.equal(own[0], own[1])
    assert not amplitudes(watched(server), 1)
    assert not amplitudes(watched(server), 2)
    kept = [server.engine.sites[name].store.load(before=10).personal[AMPLITUDE] for name in server.sites]  # type: ignore[attr-defined]
    assert all(torch.equal(*pair) for pair in zip(own, kept, strict=True))
    (warning,) = server.workspace.warnings()
    assert warning.startswith("amplitude_normalisation: what the server sets never reaches a site")


@pytest.mark.parametrize(("dims", "window"), [(2, 1.0), (3, 1.0), (2, 0.5)])
def test_a_federation_with_a_window_trains(dims: int, window: float, tmp_path: Path) -> None:
    recipe = tiny_recipe(f"harmofl(window={window})", data={"size": [8] * dims})
    server = tiny_server(tmp_path, recipe, dims, engine=Watching)
    server.fit()
    (declared,) = [s for s in server.declared["amplitude_normalisation"] if s.name == "amplitude"]
    assert declared.shape == ("amplitudes", 2, *([8] if window == 1 else [5]) * (dims - 1), 5 if window == 1 else 3)
    common = server.state.weights[AMPLITUDE]
    torch.testing.assert_close(common, sum(amplitudes(watched(server), 0)) / 3)
    assert all(torch.equal(one, common) for one in used(watched(server), 2))
    assert all(t.isfinite().all() for t in final_tensors(server).values() if t.is_floating_point())


def test_evaluation_sees_normalised_images() -> None:
    recipe = tiny_recipe("harmofl(window=1)", data={"size": [8, 8]}, network={"width": 8})
    workspace = build_workspace(recipe, tiny_task())
    data = tiny_site("north", 3).images.batch(torch.arange(3))[0]
    module = workspace.network.taps["input"].amplitude_normalisation
    learned(module, images(4, 2, 8, 8))
    amplitude = np.abs(full(images(4, 2, 8, 8))).mean(0)
    by_hand = torch.from_numpy(replaced(data, amplitude, inside((8, 8), (8, 8), 1.0))).float()
    plain = copy.deepcopy(workspace.network)
    plain.taps["input"] = torch.nn.Sequential()
    found = predict_probabilities(workspace.network, data)
    torch.testing.assert_close(found, predict_probabilities(plain, by_hand), atol=1e-5, rtol=1e-4)
    assert (found - predict_probabilities(plain, data)).abs().max() > 1e-3
