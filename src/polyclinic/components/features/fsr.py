"""FedBCS's frequency-domain style recalibration (FSR) in closed form.

Paper: Zhao et al., *Divide, Conquer and Unite: Hierarchical Style-Recalibrated Prototype Alignment for Federated
Medical Segmentation*, AAAI 2026, eqs. 4-7: amplitudes become ``w0 chi_norm + w1 chi``, phases stay.

Instance norm ``n = (x - mu) / sigma`` removes the constant term of a map's spectrum, divides all other amplitudes by
``sigma`` and changes no other phase. So eqs. 5 and 7 are exactly ``y = (w0 / sigma + w1) (x - mu) + w1 mu``. Only the
gates of eq. 6 need a transform, a single real one: with ``N`` pixels and the sum ``S`` of all amplitudes of the plain
transform but the constant term's, ``GAP(chi) = (S + N |mu|) / N^2`` and ``GAP(chi_norm) = S / (sigma N^2)``.

Departures: ``chi_norm`` is the amplitude of ``n``, as in the released code; a normalised amplitude has mean zero, so
eq. 6 would see nothing of it. ``log1p`` tames the range of the means. ``W_s`` has a bias; both start at zero, so that
the gates start at 0.5 as in the released code. That code has two learned numbers for all images instead of eq. 6, and a
channel scale and bias that eq. 7 lacks (``form="released"``); its floor under the amplitudes is not needed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from polyclinic.components.base import Aligned, Component, ComponentSettings
from polyclinic.components.features.plain_recalibration import PlainRecalibration
from polyclinic.components.registry import component
from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.networks.base import SegmentationNetwork

Form = Literal["paper", "released"]
Gate = Literal["sigmoid", "softmax"]
Rule = Callable[..., tuple[Tensor, Tensor]]
_EPS, _TEMPERATURE = 1e-5, 0.1
# Pixels that are worked on at once: on a CPU what stays in its cache, elsewhere what bounds the extra memory.
_CPU_BLOCK, _BLOCK = 2**18, 2**25


class StyleRecalibration(nn.Module):
    """Blends a map ``(batch, channel, *spatial)`` with its instance norm; shape and type stay.

    ``paper``: an image's gates come from its mean amplitudes through ``gates``, which maps ``2 channels`` numbers to 2,
    or to ``2 channels`` with ``per_channel``. ``released``: ``softmax(mix / 0.1)`` for all images, then ``scale`` and
    ``bias`` of each channel; ``gate`` and ``per_channel`` have no meaning there.
    """

    def __init__(
        self, channels: int, spatial_dims: int, form: Form = "paper", gate: Gate = "sigmoid", per_channel: bool = False
    ) -> None:
        super().__init__()
        self.spatial_dims, self.form, self.gate = spatial_dims, form, gate
        if form == "paper":
            self.gates = nn.Linear(2 * channels, 2 * channels if per_channel else 2)
            nn.init.zeros_(self.gates.weight)
            nn.init.zeros_(self.gates.bias)
        else:
            self.mix = nn.Parameter(torch.zeros(2))
            self.scale = nn.Parameter(torch.ones(channels))
            self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """The recalibrated map. Statistics and gates are float32 or better, whatever the type of ``x``."""
        if x.dim() != self.spatial_dims + 2:
            raise ValueError(f"{self.spatial_dims} spatial dimensions expected, got a map of shape {tuple(x.shape)}")
        y: Tensor = _Recalibration.apply(x, self._rule, self.form == "paper", *self.parameters())  # type: ignore[no-untyped-call]
        return y

    def for_export(self) -> nn.Module:
        """The same map in operations that exported graphs can hold."""
        return PlainRecalibration(self)

    def _rule(self, size: int, mu: Tensor, sigma: Tensor, total: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        """``gain, offset`` with ``y = gain n + offset`` from ``N, mu, sigma, S``; all are ``(batch, channel)``."""
        if self.form == "released":
            mix, scale, bias = weights
            w0, w1 = (mix / _TEMPERATURE).softmax(0)
            return scale * (w0 + w1 * sigma), scale * (w1 * mu) + bias
        means = torch.cat([total / sigma, total + size * mu.abs()], 1) / size**2
        logits = F.linear(means.log1p(), *weights).view(mu.shape[0], 2, -1)
        w0, w1 = (logits.sigmoid() if self.gate == "sigmoid" else logits.softmax(1)).unbind(1)
        return w0 + w1 * sigma, w1 * mu


class _Recalibration(torch.autograd.Function):
    """``y = gain n + offset`` by ``rule``. Keeps no map for the way back but ``x``, and computes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rule: Rule, spectral: bool, *weights: Tensor) -> Tensor:
        batch, channels, size = x.shape[0], x.shape[1], x.shape[2:].numel()
        # Group norm with one channel a group: on a CPU its statistics are many times faster than var_mean's.
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        y, mean, inverse = torch.native_group_norm(wide, None, None, batch, channels, size, channels, _EPS)
        deviation, amplitude = inverse.reciprocal(), torch.zeros_like(mean)
        if spectral:
            for maps, total in _blocks(y, amplitude):
                total.view(-1).copy_(_amplitude_sum(maps))
            amplitude *= deviation
        with torch.autocast(x.device.type, enabled=False):
            gain, offset = rule(size, mean, deviation, amplitude, *weights)
        ctx.save_for_backward(x, mean, deviation, amplitude, *weights)
        ctx.rule = rule
        y.view(batch, channels, size).mul_(gain[..., None]).add_(offset[..., None])
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, *small = ctx.saved_tensors
        mean, inverse, size = small[0], small[1].reciprocal(), x.shape[2:].numel()
        to_gain = torch.empty_like(mean)  # filled in place: small tensors kept between blocks would scatter the heap
        for maps, slope, mu, scale, total in _blocks(x, slopes, mean, inverse, to_gain):
            torch.sum((maps - mu).mul_(slope), tuple(range(1, maps.dim())), keepdim=True, out=total).mul_(scale)
        to_offset = slopes.flatten(2).sum(2, dtype=mean.dtype)
        with torch.enable_grad(), torch.autocast(x.device.type, enabled=False):
            small = [tensor.detach().requires_grad_() for tensor in small]
            gain, offset = ctx.rule(size, *small)
            # As one number: slopes of several outputs would make PyTorch import SymPy, to compare their shapes.
            change = (gain * to_gain).sum() + (offset * to_offset).sum()
            back = torch.autograd.grad(change, small, allow_unused=True)
        to_mean, to_deviation, to_amplitude, *to_weights = back
        if not ctx.needs_input_grad[0]:
            return None, None, None, *to_weights
        # Mean and deviation also act through n: dn/dmu = -1 / sigma, dn/dsigma = -n / sigma.
        direct = gain.detach() * inverse
        to_mean = (to_mean - direct * to_offset) / size
        to_deviation = (to_deviation - direct * to_gain) / size
        numbers = [mean, inverse, direct, to_mean, to_deviation, *([] if to_amplitude is None else [to_amplitude])]
        result = torch.empty(x.shape, dtype=mean.dtype, device=x.device)
        for total, maps, slope, mu, scale, a, b, c, *d in _blocks(result, x, slopes, *numbers):
            normal = (maps - mu).mul_(scale)
            torch.mul(normal, c, out=total).add_(b).addcmul_(slope, a)
            if d:
                total.addcmul_(_amplitude_slope(normal), d[0])
        return result.to(x.dtype), None, None, *to_weights


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """A few maps ``(row, *spatial)`` at a time, numbers ``(batch, channel)`` as ``(row, 1, ...)``, at least float32."""
    first, spatial = tensors[0], tensors[0].shape[2:]
    rows = max(1, (_CPU_BLOCK if first.device.type == "cpu" else _BLOCK) // spatial.numel())
    flat = [tensor.reshape(-1, *(tensor.shape[2:] or [1] * len(spatial))) for tensor in tensors]
    for block in zip(*(torch.split(tensor, rows) for tensor in flat), strict=True):
        yield tuple(tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in block)


def _spectrum(maps: Tensor) -> tuple[Tensor, Tensor]:
    """The half spectrum of maps ``(row, *spatial)`` and its squared amplitudes, which are faster than ``abs``."""
    spectrum = torch.fft.rfftn(maps, dim=tuple(range(1, maps.dim())))
    return spectrum, torch.addcmul(spectrum.real.square(), spectrum.imag, spectrum.imag)


def _amplitude_sum(maps: Tensor) -> Tensor:
    """Sum over the full spectrum, constant term excluded, of maps ``(row, *spatial)``: ``(row,)``."""
    amplitude = _spectrum(maps)[1].sqrt_()
    # A column stands for its mirror too, except the first and, for an even size, the last: they are their own mirrors.
    once = amplitude[..., 0].flatten(1).sum(1) + amplitude.flatten(1)[:, 0]
    if maps.shape[-1] % 2 == 0:
        once += amplitude[..., -1].flatten(1).sum(1)
    return 2 * amplitude.flatten(1).sum(1) - once


def _amplitude_slope(maps: Tensor) -> Tensor:
    """Gradient of ``_amplitude_sum``: the inverse transform of ``z / |z|``, which is taken as zero where ``z`` is."""
    spectrum, power = _spectrum(maps)
    inverse = power.clamp_min_(torch.finfo(power.dtype).tiny).rsqrt_()
    spectrum.real.mul_(inverse)
    spectrum.imag.mul_(inverse)
    spectrum.flatten(1)[:, 0] = 0
    slope: Tensor = torch.fft.irfftn(spectrum, s=maps.shape[1:], dim=tuple(range(1, maps.dim())), norm="forward")
    return slope


@component
class Fsr(Component):
    """Recalibrates the style of encoder stages; pooling, skip connections and prototypes all see the result."""

    name = "fsr"
    level = "feature"
    paper = "Zhao et al., AAAI 2026"
    equations = (
        "FedBCS eqs. 4-5: chi, gamma = amplitude and phase of FFT(z) / HW",
        "FedBCS eq. 6: w0, w1 = sigmoid(W_s [GAP(chi_norm); GAP(chi)])",
        "FedBCS eq. 7: IFT(w0 chi_norm + w1 chi, gamma) = (w0 / sigma + w1) (z - mu) + w1 mu",
    )

    class Settings(ComponentSettings):
        """``form``: eq. 6, or the released code's. ``taps``: where; ``auto`` is every encoder stage but the first."""

        form: Form = "paper"
        gate: Gate = "sigmoid"
        per_channel: bool = False
        taps: tuple[str, ...] | Literal["auto"] = "auto"

    def install(self, network: SegmentationNetwork) -> None:
        """Put a module of the tap's width at every chosen tap."""
        chosen, widths = self.settings, network.widths
        inner = [tap for tap in widths if tap.startswith("encoder")][1:]
        self._taps = inner if chosen.taps == "auto" else chosen.taps
        for tap in self._taps:
            if tap not in widths:
                hint = suggestion(tap, widths) or "."
                raise PolyclinicError(f"fsr(taps=...): no tap '{tap}' in this network{hint} Taps: {', '.join(widths)}.")
            options = chosen.form, chosen.gate, chosen.per_channel
            network.insert(tap, "fsr", StyleRecalibration(widths[tap], network.spatial_dims, *options))

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:
        """Every stage that is recalibrated."""
        return tuple(Aligned(tap, network.taps[tap].get_submodule("fsr")) for tap in self._taps)

    def used_equations(self) -> tuple[str, ...]:
        """Eq. 6 in the form that is used."""
        transform, gates, blend = self.equations
        if self.settings.form == "released":
            gates = f"released code: w0, w1 = softmax(m / {_TEMPERATURE}), two learned numbers m for all images"
            blend = f"{blend}, then a scale and a bias of each channel"
        return transform, gates.replace("sigmoid(", f"{self.settings.gate}("), blend

    def warnings(self) -> list[str]:
        """Say when nothing is recalibrated, when the network has done it, and when a setting has no effect."""
        sentences = []
        if self.context.norm_takes_style and set(self._taps) - {"input"}:
            sentences.append(
                "fsr: expect no gain, the network's norm takes style out of every block (benchmarks/real/fedbcs.md); "
                "leave fsr out, or take a batch norm, as the authors' released network has (network.norm = batch)."
            )
        if not self._taps:
            empty = "no encoder stage lies between the first and the bottleneck"
            sentences.append(f"fsr recalibrates nothing: {empty if self.settings.taps == 'auto' else 'taps is empty'}.")
        if self.settings.form == "released" and (self.settings.per_channel or self.settings.gate != "sigmoid"):
            sentences.append("fsr: gate and per_channel have no effect with form=released.")
        return sentences
