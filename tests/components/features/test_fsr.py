from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyclinic.components.features import fsr
from polyclinic.components.features.fsr import StyleRecalibration
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.workspace import Workspace, build_workspace
from support import tiny_recipe, tiny_server, tiny_task

KINDS = {
    "sigmoid": {"form": "paper"},
    "softmax": {"form": "paper", "gate": "softmax"},
    "sigmoid of each channel": {"form": "paper", "per_channel": True},
    "softmax of each channel": {"form": "paper", "gate": "softmax", "per_channel": True},
    "released": {"form": "released"},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
DEPTH3 = {"depth": 3, "width": 2, "norm": "batch"}


def random_layer(kind: str, channels: int, dims: int = 2, seed: int = 0) -> StyleRecalibration:
    """In float64 and far from its start, so that every weight matters."""
    layer = StyleRecalibration(channels, dims, **KINDS[kind]).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            weight.add_(
                torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * (0.1 if name == "mix" else 2)
            )
    return layer


def random_map(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Channels with different means and ranges."""
    generator = torch.Generator().manual_seed(seed)
    noise, mean, spread = (torch.randn(s, generator=generator) for s in (shape, shape[:2], shape[:2]))
    ones = [1] * (len(shape) - 2)
    return (noise * spread.exp().view(*shape[:2], *ones) + mean.view(*shape[:2], *ones)).to(dtype)


def amplitude_and_phase(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eqs. 4 and 5, with atan2 for the arctan."""
    dims = tuple(range(2, x.dim()))
    spectrum = torch.fft.fftn(x, dim=dims, norm="forward")
    return spectrum.abs(), torch.atan2(spectrum.imag, spectrum.real)


def normalised(x: Tensor) -> Tensor:
    dims = tuple(range(2, x.dim()))
    return (x - x.mean(dims, keepdim=True)) / (x.var(dims, correction=0, keepdim=True) + 1e-5).sqrt()


def oracle(layer: StyleRecalibration, x: Tensor) -> Tensor:
    """Eqs. 4 to 7 written out: transform twice, mix amplitudes, keep the phase, transform back."""
    dims, ones = tuple(range(2, x.dim())), [1] * (x.dim() - 2)
    chi, phase = amplitude_and_phase(x)
    chi_norm, _ = amplitude_and_phase(normalised(x))
    if layer.form == "paper":
        pooled = torch.cat([chi_norm.mean(dims), chi.mean(dims)], 1).log1p()
        logits = (pooled @ layer.gates.weight.T + layer.gates.bias).reshape(len(x), 2, -1, *ones)
        gates = 1 / (1 + (-logits).exp()) if layer.gate == "sigmoid" else logits.exp() / logits.exp().sum(1, True)
        w0, w1 = gates[:, 0], gates[:, 1]
    else:
        powers = (layer.mix / 0.1).exp()
        w0, w1 = powers / powers.sum()
    mixed = w0 * chi_norm + w1 * chi
    y = torch.fft.ifftn(torch.complex(mixed * phase.cos(), mixed * phase.sin()), dim=dims, norm="forward").real
    return y if layer.form == "paper" else layer.scale.view(-1, *ones) * y + layer.bias.view(-1, *ones)


@EVERY_KIND
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (3, 2, 7, 10), (1, 4, 6, 9), (2, 2, 4, 5, 6), (2, 3, 5, 3, 7)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_equals_the_form_in_the_frequency_domain(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    layer, x = random_layer(kind, shape[1], len(shape) - 2), random_map(*shape)
    wanted = oracle(layer, x)
    found = layer.to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@EVERY_KIND
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 2, 5, 6), (2, 2, 4, 3, 5)])
def test_gradients_are_those_through_the_frequency_domain(kind: str, shape: tuple[int, ...]) -> None:
    layer, x = random_layer(kind, shape[1], len(shape) - 2), random_map(*shape).requires_grad_()
    slope = random_map(*shape, seed=1)
    inputs = [x, *layer.parameters()]
    wanted = torch.autograd.grad(oracle(layer, x), inputs, slope)
    found = torch.autograd.grad(layer(x), inputs, slope)
    assert all(gradient.abs().max() > 1e-4 for gradient in wanted)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@EVERY_KIND
@pytest.mark.parametrize("shape", [(2, 2, 4, 3), (1, 2, 1, 1), (2, 2, 1, 4), (2, 1, 3, 2, 2)])
def test_gradcheck(kind: str, shape: tuple[int, ...]) -> None:
    layer, x = random_layer(kind, shape[1], len(shape) - 2), random_map(*shape).requires_grad_()
    names = [name for name, _ in layer.named_parameters()]

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()))


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    batch=st.integers(1, 3),
    channels=st.integers(1, 3),
    spatial=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    seed=st.integers(0, 10**6),
)
def test_any_shape(kind: str, batch: int, channels: int, spatial: list[int], seed: int) -> None:
    layer = random_layer(kind, channels, len(spatial), seed)
    x = random_map(batch, channels, *spatial, seed=seed).requires_grad_()
    torch.testing.assert_close(layer(x), oracle(layer, x), rtol=1e-10, atol=1e-10)
    slope = random_map(*x.shape, seed=seed + 1)
    found, wanted = (torch.autograd.grad(y, [x, *layer.parameters()], slope) for y in (layer(x), oracle(layer, x)))
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-8)


@EVERY_KIND
def test_blocks_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = random_layer(kind, 3), random_map(4, 3, 6, 5).requires_grad_()

    def run() -> tuple[Tensor, ...]:
        y = layer(x)
        return (y.detach(), *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]))

    whole = run()
    for block in (1, 70, 150):
        monkeypatch.setattr(fsr, "_CPU_BLOCK", block)
        torch.testing.assert_close(run(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spatial", [(8, 8), (5, 7), (4, 9), (9, 4), (1, 1), (3, 4, 6), (3, 4, 5)])
def test_gates_see_the_mean_over_the_full_spectrum(spatial: tuple[int, ...]) -> None:
    """Eq. 6's input against transforms of both maps in full; and what the layer makes of it."""
    x = random_map(2, 3, *spatial)
    seen: list[Tensor] = []
    layer = random_layer("sigmoid", 3, len(spatial))
    rule = layer._rule

    def spy(size: int, mean: Tensor, deviation: Tensor, total: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        seen.extend([total / (deviation * size**2), (total + size * mean.abs()) / size**2])
        return rule(size, mean, deviation, total, *weights)

    layer._rule = spy  # type: ignore[method-assign]
    layer(x)
    dims = tuple(range(2, x.dim()))
    wanted = [amplitude_and_phase(one)[0].mean(dims) for one in (normalised(x), x)]
    torch.testing.assert_close(seen, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("logits", [(-30.0, -30.0), (30.0, -30.0), (-30.0, 30.0), (30.0, 30.0)])
def test_the_ends_of_the_gates(per_channel: bool, logits: tuple[float, float]) -> None:
    """Gates (0, 0) give nothing, (1, 0) instance norm, (0, 1) the map itself, (1, 1) their sum."""
    layer = StyleRecalibration(3, 2, per_channel=per_channel).double()
    with torch.no_grad():
        layer.gates.bias.copy_(torch.tensor(logits).repeat_interleave(3 if per_channel else 1))
    x = random_map(2, 3, 6, 7)
    wanted = (logits[0] > 0) * normalised(x) + (logits[1] > 0) * x
    torch.testing.assert_close(layer(x), wanted, rtol=1e-10, atol=1e-10)


@EVERY_KIND
def test_starts_as_the_mean_of_map_and_instance_norm(kind: str) -> None:
    x = random_map(2, 3, 6, 7)
    layer = StyleRecalibration(3, 2, **KINDS[kind]).double()
    torch.testing.assert_close(layer(x), (x + normalised(x)) / 2)


@pytest.mark.parametrize("form", ["paper", "released"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 3.7, -1e3, 1e-40])
@pytest.mark.parametrize("spatial", [(1, 1), (5, 7), (8, 8), (3, 4, 5)])
def test_constant_maps_keep_half_of_their_value_and_gradients_are_finite(
    form: str, dtype: torch.dtype, value: float, spatial: tuple[int, ...]
) -> None:
    layer = StyleRecalibration(2, len(spatial), form).to(dtype)
    x = torch.full((2, 2, *spatial), value, dtype=dtype, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, x / 2, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(0.3)
    layer(x).square().sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (x, *layer.parameters()))


@EVERY_KIND
def test_gradients_are_finite_where_amplitudes_vanish_or_nearly(kind: str) -> None:
    """A wave has one amplitude and zeros elsewhere; numbers below float32's normal range have amplitudes like them."""
    wave = torch.cos(torch.arange(8) * torch.pi / 4).expand(1, 2, 8, 8)
    faint = torch.zeros(1, 2, 8, 8)
    faint[..., 3, 5] = 1e-42
    layer = random_layer(kind, 2).float()
    for x in (wave, faint, torch.zeros(1, 2, 8, 8), wave * 1e-25):
        x = x.clone().requires_grad_()
        layer(x).sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


@EVERY_KIND
def test_float32_gradients_of_maps_far_from_zero_are_near_the_double_ones(kind: str) -> None:
    layer, x, slope = random_layer(kind, 3), (random_map(2, 3, 16, 16) + 30).float(), random_map(2, 3, 16, 16, seed=3)
    exact, rounded = x.double().requires_grad_(), x.requires_grad_()
    (wanted,) = torch.autograd.grad(oracle(layer, exact), exact, slope)
    (found,) = torch.autograd.grad(layer.float()(rounded), rounded, slope.float())
    assert (found - wanted).norm() < 1e-5 * wanted.norm()


@EVERY_KIND
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_full_statistics(kind: str, dtype: torch.dtype) -> None:
    """The output is the float32 one, rounded once; so are the gradients. Weights keep float32 gradients."""
    x = random_map(2, 4, 33, 32).to(dtype)
    layer = random_layer(kind, 4).float()
    short, long = x.clone().requires_grad_(), x.float().requires_grad_()
    slope = random_map(*x.shape, seed=1).to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(short)
        gradients = torch.autograd.grad(y, [short, *layer.parameters()], slope)
    assert y.dtype == dtype
    wanted = layer(long)
    torch.testing.assert_close(y, wanted.to(dtype), rtol=1e-6, atol=1e-6)
    expected = torch.autograd.grad(wanted, [long, *layer.parameters()], slope.float())
    torch.testing.assert_close(gradients[0], expected[0].to(dtype), rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(gradients[1:], expected[1:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 6, 5), (2, 3, 1, 1), (2, 3, 1, 5), (2, 1, 6, 5)])
def test_other_memory_layouts_give_the_same(shape: tuple[int, ...]) -> None:
    layer, x = random_layer("sigmoid", shape[1]), random_map(*shape)
    results = []
    for form in (torch.contiguous_format, torch.channels_last):
        one = x.to(memory_format=form).requires_grad_()
        slopes = (random_map(*shape, seed=1).to(memory_format=form), torch.ones((), dtype=x.dtype).expand(shape))
        results.append([layer(one), *(torch.autograd.grad(layer(one), one, slope)[0] for slope in slopes)])
    torch.testing.assert_close(results[0], results[1])


def test_a_map_of_other_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="2 spatial dimensions expected"):
        StyleRecalibration(3, 2)(torch.ones(1, 3, 4, 4, 4))


class Calls:
    """Counts calls into ``torch.fft`` and forbids the trigonometry of the frequency-domain form."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        for name in (
            "fft",
            "ifft",
            "rfft",
            "irfft",
            "fft2",
            "ifft2",
            "rfft2",
            "irfft2",
            "fftn",
            "ifftn",
            "rfftn",
            "irfftn",
        ):
            monkeypatch.setattr(torch.fft, name, self._counting(name, getattr(torch.fft, name)))
        for owner in (torch, Tensor):
            for name in ("atan2", "arctan2", "atan", "angle", "cos", "sin", "polar"):
                if hasattr(owner, name):
                    monkeypatch.setattr(owner, name, self._forbidden)

    def _counting(self, name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(*arguments: Any, **more: Any) -> Tensor:
            self.names.append(name)
            return function(*arguments, **more)

        return counted

    def _forbidden(self, *_: Any, **__: Any) -> Tensor:
        raise AssertionError("trigonometry")


@pytest.mark.parametrize(
    ("kind", "forward", "backward"), [("sigmoid", ["rfftn"], ["rfftn", "irfftn"]), ("released", [], [])]
)
def test_one_transform_and_no_trigonometry(
    kind: str, forward: list[str], backward: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = random_layer(kind, 3), random_map(2, 3, 6, 5).requires_grad_()
    calls = Calls(monkeypatch)
    y = layer(x)
    assert calls.names == forward
    y.sum().backward()
    assert calls.names == forward + backward


def test_a_map_without_gradient_gives_the_weights_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the tap ``input`` nothing lies before the layer: no transform on the way back."""
    layer, x = random_layer("sigmoid", 3), random_map(2, 3, 6, 5)
    wanted = torch.autograd.grad(oracle(layer, x).square().sum(), list(layer.parameters()))
    y = layer(x).square().sum()
    calls = Calls(monkeypatch)
    torch.testing.assert_close(torch.autograd.grad(y, list(layer.parameters())), wanted)
    assert not calls.names


@EVERY_KIND
def test_nothing_but_the_map_is_kept_for_the_way_back(kind: str) -> None:
    layer, x = random_layer(kind, 8), random_map(2, 8, 32, 32).requires_grad_()
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x)
    others = [t for t in kept if t.data_ptr() != x.data_ptr()]
    assert len(others) < len(kept)
    assert sum(t.numel() for t in others) < x.numel() / 20


# ---- the component ---------------------------------------------------------------------------------------------------


def workspace_of(method: str, dims: int = 2, **network: Any) -> Workspace:
    return build_workspace(tiny_recipe(method, network={**DEPTH3, **network}), tiny_task(dims))


def taps_of(workspace: Workspace) -> list[str]:
    return [tap for tap, modules in workspace.network.taps.items() if len(modules)]


@pytest.mark.parametrize("dims", [2, 3])
def test_auto_is_every_encoder_stage_but_the_first_and_the_bottleneck(dims: int) -> None:
    workspace = workspace_of("fedavg+fsr", dims)
    assert taps_of(workspace) == ["encoder1", "encoder2"]
    for tap in taps_of(workspace):
        layer = workspace.network.taps[tap].fsr
        assert isinstance(layer, StyleRecalibration)
        assert layer.gates.in_features == 2 * workspace.network.widths[tap]
        assert layer.spatial_dims == dims


def test_the_released_network_has_as_many_weights_as_the_released_code() -> None:
    """Three layers of 64, 128 and 256 channels: a scale and a bias each, and two numbers."""
    workspace = workspace_of("fedavg+fsr(form=released)", depth=4, width=32)
    names = [name for name in workspace.network.state_dict() if ".fsr." in name]
    assert sum(workspace.network.state_dict()[name].numel() for name in names) == 902
    assert set(names) <= workspace.exchanged


def test_chosen_taps_and_settings_reach_the_layers() -> None:
    workspace = workspace_of('fedavg+fsr(taps=["bottleneck", "decoder0"], gate=softmax, per_channel=true)')
    assert taps_of(workspace) == ["bottleneck", "decoder0"]
    assert workspace.network.taps["bottleneck"].fsr.gates.out_features == 2 * workspace.network.widths["bottleneck"]
    assert workspace.network.taps["bottleneck"].fsr.gate == "softmax"


def test_an_unknown_tap_gets_a_sentence() -> None:
    with pytest.raises(
        PolyclinicError, match=r"fsr\(taps=...\): no tap 'encoder9'.*did you mean 'encoder.'.*Taps: input"
    ):
        workspace_of('fedavg+fsr(taps=["encoder9"])')


def test_the_equations_are_those_of_the_form() -> None:
    def equations(settings: str) -> str:
        (fsr,) = (one for one in workspace_of(f"fedavg+fsr({settings})").components if one.name == "fsr")
        return " | ".join(fsr.used_equations())

    assert "eq. 6: w0, w1 = sigmoid(W_s" in equations("form=paper")
    assert "eq. 6: w0, w1 = softmax(W_s" in equations("gate=softmax")
    assert "eq. 6" not in equations("form=released")
    assert "released code: w0, w1 = softmax(m / 0.1)" in equations("form=released")


def test_warnings() -> None:
    def warnings(method: str, **network: Any) -> list[str]:
        return [warning for one in workspace_of(method, **network).components for warning in one.warnings()]

    assert warnings("fedavg+fsr") == []
    assert warnings("fedavg+fsr(form=released)") == []
    assert "recalibrates nothing: no encoder stage lies between" in warnings("fedavg+fsr", depth=1)[0]
    assert warnings("fedavg+fsr(taps=[])") == ["fsr recalibrates nothing: taps is empty."]
    assert "no effect" in warnings("fedavg+fsr(form=released, gate=softmax)")[0]


@pytest.mark.parametrize(
    ("settings", "norm", "said"),
    [
        ("", "instance", True),
        ("(form=released)", "instance", True),
        ("(taps=[input,encoder1])", "instance", True),
        ("(taps=[input])", "instance", False),  # no norm was there before it
        ("(taps=[])", "instance", False),
        ("", "batch", False),
        ("", "batch-nostats", False),
        ("", "group", False),
    ],
)
def test_a_norm_that_has_taken_the_style_is_said(settings: str, norm: str, said: bool) -> None:
    found = workspace_of(f"fedavg+fsr{settings}", norm=norm).warnings()
    assert any(warning.startswith("fsr: expect no gain") for warning in found) == said


def test_skip_pool_and_features_see_the_recalibrated_map() -> None:
    workspace = workspace_of("fedavg+fsr")
    network = workspace.network.eval()
    layer = network.taps["encoder1"].fsr
    outputs: list[Tensor] = []
    layer.register_forward_hook(lambda _, __, y: outputs.append(y))
    pooled: list[Tensor] = []
    network.encoder[2].register_forward_pre_hook(lambda _, inputs: pooled.append(inputs[0]))
    features = network.features(torch.rand(2, 2, 16, 16))
    assert outputs[0] is features.encoder[1]
    assert outputs[0] is pooled[0]


@pytest.mark.parametrize("form", ["paper", "released"])
@pytest.mark.parametrize("dims", [2, 3])
def test_training_moves_the_gates_and_the_server_averages_them(form: str, dims: int, tmp_path: Path) -> None:
    network = {"depth": 2, "width": 2, "norm": "batch"}
    recipe = tiny_recipe(f"fedavg+fsr(form={form})", network=network, training={"rounds": 1})
    server = tiny_server(tmp_path, recipe, dims, sizes={"north": 3, "south": 3})
    start = {name: tensor.clone() for name, tensor in server.state.weights.items()}
    updates = list(server.engine.train(Broadcast(0, start), ["north", "south"]))
    gate = "taps.encoder1.fsr." + ("gates.weight" if form == "paper" else "mix")
    for update in updates:
        assert not torch.equal(update.weights[gate], start[gate])
    assert not torch.equal(updates[0].weights[gate], updates[1].weights[gate])
    server.fit()
    wanted = (updates[0].weights[gate] + updates[1].weights[gate]) / 2
    torch.testing.assert_close(server.state.weights[gate], wanted)


def test_one_step_changes_every_weight_of_the_layer() -> None:
    for kind in KINDS:
        layer = StyleRecalibration(3, 2, **KINDS[kind])
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        before = [weight.detach().clone() for weight in layer.parameters()]
        (layer(random_map(2, 3, 8, 8, dtype=torch.float32)) - 1).square().mean().backward()
        optimizer.step()
        assert all(not torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))
