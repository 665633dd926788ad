"""HarmoFL's amplitude normalisation.

Paper: Jiang, Wang, Dou, *HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images*, AAAI 2022. With ``z = F(x)`` the image's Fourier coefficients, channel by channel:

(1) ``A <- (1 - v) A + v mean_b |z_b|``      running amplitude of a site over its batches b of the first round
(2) ``A <- (1 / M) sum_m A_m``               server, after the first round; fixed from then on
(3) ``x' = F^-1(A z / |z|)``                 every image keeps its phase and gets the common amplitude

The window. The paper names none; read literally, the whole spectrum is replaced (``window = 1``). The authors' released
code replaces a window of half-size 0, which is the coefficient of frequency 0 alone (``window = 0``): (3) then moves
every channel to a common mean. Default 0, because this is what the released code runs and because the whole spectrum
ties a network to one image size. A window between them replaces the frequencies ``|k_i| <= window N_i / 2`` of axis i.

The momentum v. The released layer declares 0.1, but its compiled helper takes an integer and so computes with 0, which
keeps the first batch alone. Default 0.1, as declared; ``momentum = 0`` is what the released code computes.

Where a site's policy asks for more than one case behind what leaves, A_m is the plain mean over all images that the
round draws, whatever v is: with a v of 0 or 1, or small batches, (1) would be the spectrum of a few images, or of one.

Departures: amplitudes are divided by the number of pixels (``norm="forward"``), so that they do not depend on the size
and frequency 0 is the mean. A coefficient of 0 has phase 0. Images are seen after augmentation, because the module sits
in the network. A batch counts once, however often a step runs it through the network. Where nothing is known yet (a
model before the end of its first round) images pass unchanged in eval mode. An input of another size than that of
training gets the frequencies (cycles an image) that both sizes have; for the whole spectrum it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from polyclinic.components.base import Aligned, Component, ComponentSettings
from polyclinic.components.images.plain_amplitude_window import PlainAmplitudeWindow
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

Index = tuple[Any, ...]


class AmplitudeWindow(nn.Module):
    """Gives images ``(batch, channel, *spatial)`` the amplitude that the buffers hold.

    ``amplitude`` is ``(channel,)`` for frequency 0 alone, else ``(channel, *window)`` in the layout of ``rfftn``: the
    frequencies 0, 1, ..., h, -h, ..., -1 along each axis but the last, and 0 ... h along that one. ``count`` is the
    number of batches behind it. While ``learning`` is set, the next batch in train mode is added first.
    """

    amplitude: Tensor
    count: Tensor

    def __init__(self, channels: int, window: float, momentum: float, size: Sequence[int] | None) -> None:
        super().__init__()
        self.size = None if window == 0 or size is None else tuple(size)
        self.whole, self.momentum, self.learning = window == 1, momentum, False
        self.evenly, self.images = False, 0
        # The small number keeps 0.29 * 100 from becoming 28.
        self.halves = [int(window * (n // 2) + 1e-9) for n in self.size or ()]
        backward = [min(half, (n - 1) // 2) for half, n in zip(self.halves, self.size or (), strict=True)]
        shape = [1 + half + back for half, back in zip(self.halves, backward, strict=True)]
        shape[-1:] = [1 + half for half in self.halves[-1:]]
        self.register_buffer("amplitude", torch.zeros(channels, *shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        """The images with their own phase and the common amplitude; no change as long as nothing is known."""
        size = tuple(images.shape[2:])
        if self.whole and size != self.size:
            raise PolyclinicError(
                f"amplitude_normalisation(window=1): an image of size {list(size)} came to a network that knows "
                f"amplitudes of size {list(self.size or ())} alone; bring it to that size, or train with window < 1."
            )
        axes = tuple(range(2, images.dim()))
        with torch.autocast(images.device.type, enabled=False):
            values = images.float()
            if self.size is None:
                means = values.mean(axes)
                change = self._wanted(means, (...,)) - means
                normalised = values + change.reshape(*change.shape, *[1] * len(axes))
            else:
                spectrum = torch.fft.rfftn(values, dim=axes, norm="forward")
                in_spectrum, in_buffer = self._frequencies(size, images.device)
                spectrum[in_spectrum] = self._wanted(spectrum[in_spectrum], in_buffer)
                normalised = torch.fft.irfftn(spectrum, s=size, dim=axes, norm="forward")
            # Chosen on the device: reading the count would stall a GPU in every step.
            return torch.where(self.count > 0, normalised, values)

    def for_export(self) -> nn.Module:
        """The same map in operations that exported graphs can hold."""
        if not self.count:
            return nn.Identity()
        return self if self.size is None else PlainAmplitudeWindow(self)

    def _wanted(self, coefficients: Tensor, in_buffer: Index) -> Tensor:
        """Coefficients ``(batch, channel, ...)`` with the phase of ``coefficients`` and the amplitude of the buffer."""
        sizes = coefficients.abs()
        if self.training and self.learning:
            self._learn(sizes.detach().mean(0), in_buffer, len(sizes))
        phase = torch.where(sizes > 0, coefficients / torch.where(sizes > 0, sizes, 1.0), 1.0)
        return self.amplitude[in_buffer] * phase

    @torch.no_grad()
    def _learn(self, batch: Tensor, in_buffer: Index, images: int) -> None:
        """Equation 1; the first batch initialises. ``evenly`` makes it the mean over all images so far."""
        self.images += images
        weight = images / self.images if self.evenly else self.momentum
        self.amplitude[in_buffer] = torch.where(self.count > 0, self.amplitude[in_buffer].lerp(batch, weight), batch)
        self.count += 1
        self.learning = False

    @torch.no_grad()
    def forget(self) -> None:
        """Nothing is known."""
        self.amplitude.zero_()
        self.count.zero_()

    def _frequencies(self, size: tuple[int, ...], device: torch.device) -> tuple[Index, Index]:
        """Where the frequencies of the window that an image of this size has are in its spectrum and in the buffer."""
        in_spectrum: list[Tensor] = []
        in_buffer: list[Tensor] = []
        axes = zip(self.halves, self.amplitude.shape[1:], self.size or (), size, strict=True)
        for axis, (half, known, trained, n) in enumerate(axes):
            # The highest frequency of an even number of pixels is both n / 2 and -n / 2, which differ at other sizes.
            forward = min(half, n // 2 if n == trained else (n - 1) // 2)
            backward = 0 if axis == len(size) - 1 else min(known - 1 - half, forward)
            shape = [-1 if other == axis else 1 for other in range(len(size))]
            for places, length in ((in_spectrum, n), (in_buffer, known)):
                rising = torch.arange(forward + 1, device=device)
                places.append(torch.cat([rising, torch.arange(length - backward, length, device=device)]).view(shape))
        return (..., *in_spectrum), (..., *in_buffer)


@component
class AmplitudeNormalisation(Component):
    """Gives the images of all sites one common low-frequency amplitude, at the network's input."""

    name = "amplitude_normalisation"
    level = "image"
    paper = "Jiang et al., AAAI 2022"
    equations = ("HarmoFL: x' = F^-1(A z / |z|), A = the mean of the sites' running amplitudes",)

    class Settings(ComponentSettings):
        """``window``: 0 for the mean alone, a share of the frequencies, or 1 for all. ``momentum``: of the average."""

        window: float = Field(0.0, ge=0, le=1)
        momentum: float = Field(0.1, ge=0, le=1)

    def install(self, network: SegmentationNetwork) -> None:
        """Put the module at the input, so that training, evaluation and prediction all use it."""
        window, size = self.settings.window, self.context.image_size
        if window > 0 and size is None:
            raise PolyclinicError(
                f"amplitude_normalisation(window={window:g}): needs one size for all images; "
                "set data.size (or data.patch), or use window=0."
            )
        if window == 1 and any(n % m for n, m in zip(size or (), network.multiples, strict=False)):
            raise PolyclinicError(
                f"amplitude_normalisation(window=1): images of size {list(size or ())} are padded to multiples of "
                f"{list(network.multiples)} when they are evaluated; make data.size (or data.patch) such multiples."
            )
        self._module = AmplitudeWindow(network.channels, window, self.settings.momentum, size)
        network.insert("input", self.name, self._module)
        prefix = next(name for name, module in network.named_modules() if module is self._module)
        self._names = {key: f"{prefix}.{key}" for key in ("amplitude", "count")}

    def sets(self, name: str) -> bool:
        """Both buffers."""
        return name in self._names.values()

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:  # noqa: ARG002
        """The mean amplitude of the site's images and the number of batches behind it; no row once one is known."""
        shape = tuple(self._module.amplitude.shape)
        once = "in the first round alone"
        return (
            Shared("amplitude", ("amplitudes", *shape), f"mean amplitude of the images, {once}", at_most=1, at_least=0),
            Shared("count", ("amplitudes",), f"batches behind it, {once}", torch.int64, at_most=1, at_least=0),
        )

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """The images themselves."""
        return (Aligned("input", self._module),)

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """Learn only while the federation knows no amplitude; a site that joins later receives the common one."""
        self._module.learning, self._module.images = False, 0
        self._module.evenly = site.minimum_images > 1
        self._learns = int(self._module.count) == 0
        self._cases: set[int] = set()

    def on_images(self, step: Step) -> None:
        """Let the step's first pass add the batch; a second pass over it (weight perturbation) must not."""
        self._module.learning = self._learns
        if self._learns and step.site.minimum_images > 1:
            self._cases |= step.cases

    def share(self, site: SiteRound) -> Tensors:
        """One row as long as the site learns, none afterwards; zeros where the policy asks for more cases.

        The buffers leave with the weights, so they are forgotten too.
        """
        if self._learns and site.minimum_images > 1 and len(self._cases) < site.minimum_images:
            self._module.forget()
        rows = 1 if self._learns else 0
        return {"amplitude": self._module.amplitude[None][:rows], "count": self._module.count[None][:rows]}

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:
        """Equation 2 in the first round; later the aggregation's result gives way to what was known."""
        if not server.weights.keys() >= set(self._names.values()):
            return {}  # a method without exchange: every site keeps its own
        fixed = {key: server.previous[name] for key, name in self._names.items()}
        learned = [tensors for tensors in shared.values() if int(tensors["count"].sum()) > 0]
        if int(fixed["count"]) == 0 and learned:
            mean = torch.cat([tensors["amplitude"] for tensors in learned]).double().mean(0)
            count = torch.cat([tensors["count"] for tensors in learned]).sum()
            fixed = {"amplitude": mean.to(torch.float32), "count": count}
        server.weights.update({self._names[key]: tensor for key, tensor in fixed.items()})
        return {}
