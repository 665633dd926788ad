"""FedBCS's context-aware dual-level prototype alignment (CDPA), its second half.

Paper: Zhao et al., *Divide, Conquer and Unite: Hierarchical Style-Recalibrated Prototype Alignment for Federated
Medical Segmentation*, AAAI 2026, eqs. 9-17. Prototypes of several encoder and decoder levels are fused with those of
the deeper level, clustered at the server by FINCH, and pixels are drawn to the clusters of their class.

Departures: losses are means over pixels, channels and the two streams, as in the released code; the sums of eq. 16 over
768 channels would swamp the segmentation loss (``consistency = "sum"`` has them). The temperature of eq. 20 divides the
cosine of eq. 15. The contrast is a log-sum-exp; the released code clamps exponentials, which has no gradient at
``tau = 0.005`` (``contrast = "released"``). Both streams live on a grid of a quarter of the image's size; the released
code has the encoder's at full size, by the order of a list (``encoder_stride = 1``). Prototypes are means over all
pixels of the last epoch (eq. 9), not over batch means.

Anchors are pixels of all classes, the background too, as eqs. 15-16 sum them. The released code leaves the background
out (``anchors = "foreground"``). Then moving every pixel along ``q_foreground - q_background`` lowers the loss, and
nothing pulls back: prototypes follow, and the classes end on one ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator
from torch import Tensor

from polyclinic.components.base import Aligned, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.prototypes.bank import (
    InfoNceForm,
    Prototypes,
    cosines,
    info_nce,
    mean_distances,
    mean_over_classes,
)
from polyclinic.components.toolbox.prototypes.base import PrototypeComponent
from polyclinic.components.toolbox.prototypes.pyramid import ContextRule, Fusion, PyramidView
from polyclinic.components.toolbox.prototypes.views import View
from polyclinic.core.errors import PolyclinicError
from polyclinic.networks.base import SegmentationNetwork

_STREAMS = ("encoder", "decoder")


@component
class Cdpa(PrototypeComponent):
    """Draws encoder and decoder pixels of several levels to clustered prototypes of their class."""

    name = "cdpa"
    paper = "Zhao et al., AAAI 2026"
    equations = (
        "FedBCS eq. 9: p^{k,c} = mean of level k's features over the pixels of class c",
        "FedBCS eqs. 10-12: q^c = F(Concat(p^{k,c}, p^{k+1,c})), 1x1 convolutions, encoder and decoder apart",
        "FedBCS eqs. 13-14: Q^c = FINCH({q_m^c}), qbar^c = mean of Q^c",
        "FedBCS eq. 15: -log sum_{Q^c} exp(cos(e, q) / tau) / sum_Q exp(cos(e, q) / tau)",
        "FedBCS eq. 16: ||e - qbar^c||^2",
        "FedBCS eq. 17: L = L_seg + L_contra + L_consis",
    )

    class Settings(ComponentSettings):
        """``tau``: temperature, 0.005 (histology) and 0.4 (prostate) in the paper."""

        tau: float = Field(0.4, gt=0, description="temperature: 0.005 for histology and 0.4 for prostate in the paper")
        weight: float = Field(
            0.1, ge=0, description="of both losses, chosen on validation data; 1 in eq. 17 and the released code"
        )
        channels: int = Field(256, ge=1, description="of each fused level")
        context: ContextRule = Field("adjacent", description="eq. 10, or the deepest level as in the released code")
        levels: tuple[int, ...] | None = Field(None, description="levels that are used, 0 the finest; all by default")
        encoder_stride: int = Field(4, ge=1, description="image size over grid size; 1 in the released code")
        decoder_stride: int = Field(4, ge=1, description="the same for the decoder; 4 in the released code")
        anchors: Literal["all", "foreground"] = Field(
            "all",
            description="pixels that are aligned: of all classes (eqs. 15-16); foreground: as in the released code",
        )
        contrast: InfoNceForm = Field("lse", description="released: exponentials clamped as in the released code")
        consistency: Literal["mean", "sum"] = Field("mean", description="over channels and streams; eq. 16 sums")
        prototypes: Literal["pixels", "batches"] = Field(
            "pixels", description="mean over pixels (eq. 9), or over the means of batches as in the released code"
        )

        @field_validator("levels")
        @classmethod
        def _once(cls, levels: tuple[int, ...] | None) -> tuple[int, ...] | None:
            doubled = [level for level in levels or () if (levels or ()).count(level) > 1]
            if doubled:
                raise ValueError(f"level {doubled[0]} is there twice; name each level once")
            return levels

    def install(self, network: SegmentationNetwork) -> None:
        """Put the fusion's 1x1 convolutions into the network's extras, where they are averaged like any weight."""
        if not self.on:
            return
        available = sum(name.startswith("encoder") for name in network.widths)
        self._levels = tuple(range(available)) if self.settings.levels is None else tuple(sorted(self.settings.levels))
        self._require_levels(available)
        for stream in _STREAMS:
            widths = [network.widths[f"{stream}{level}"] for level in self._levels]
            fusion = Fusion(widths, self.settings.channels, self.settings.context)
            network.extras[f"cdpa_{stream}"] = fusion

    def _require_levels(self, available: int) -> None:
        if available < 2:
            raise PolyclinicError(
                f"cdpa: two encoder levels or more are needed and this network has {available}; "
                "raise network.depth, or drop the component with -cdpa."
            )
        shown = f"cdpa(levels={list(self._levels)})"
        unknown = [level for level in self._levels if not 0 <= level < available]
        if unknown:
            raise PolyclinicError(
                f"{shown}: the network has no encoder level {unknown[0]}, its levels are 0 to {available - 1}; "
                "choose among them or raise network.depth."
            )
        if len(self._levels) < 2:
            raise PolyclinicError(f"{shown}: two levels or more are needed; choose among 0 to {available - 1}.")

    @property
    def weight(self) -> float:
        """Of both losses."""
        return float(self.settings.weight)

    @property
    def averages_batch_means(self) -> bool:
        """As the released code does, if the settings say so."""
        return bool(self.settings.prototypes == "batches")

    def channels(self, network: SegmentationNetwork) -> dict[str, int]:  # noqa: ARG002
        """Encoder and decoder, with one slot for each pair of levels."""
        return dict.fromkeys(_STREAMS, self.settings.channels * (len(self._levels) - 1))

    def aligns(self, network: SegmentationNetwork) -> tuple[Aligned, ...]:  # noqa: ARG002
        """The classes in the finest decoder level, before it is fused: another method's network has that, too."""
        return (Aligned(f"decoder{self._levels[0]}", by_class=True),) if self.on else ()

    def views(self, step: Step) -> dict[str, View]:
        """Both streams, levels from fine to coarse, the bottleneck left out."""
        output = step.labelled
        pyramids: dict[str, Sequence[Tensor]] = {"encoder": output.encoder, "decoder": output.decoder[::-1]}
        strides = {"encoder": self.settings.encoder_stride, "decoder": self.settings.decoder_stride}
        views: dict[str, View] = {}
        for stream, pyramid in pyramids.items():
            fusion = step.network.extras[f"cdpa_{stream}"]
            assert isinstance(fusion, Fusion)
            levels = [pyramid[level] for level in self._levels]
            views[stream] = PyramidView(levels, fusion, step.labels, strides[stream])
        return views

    def align(self, view: View, prototypes: Prototypes) -> dict[str, Tensor]:
        """Eqs. 15 and 16, mean over the anchors of a class, then over classes."""
        labels, present = view.labels, prototypes.present
        used = present[labels] if self.settings.anchors == "all" else present[labels] & (labels > 0)
        dots, squares = view.compare(prototypes.vectors)
        pulls = info_nce(
            cosines(dots, squares, prototypes), labels, prototypes, self.settings.tau, self.settings.contrast
        )
        distances = mean_distances(dots, squares, labels, prototypes)
        # eq. 16 adds channels and streams; the base class has divided by the number of streams.
        distances = distances * len(_STREAMS) if self.settings.consistency == "sum" else distances / view.channels
        return {
            "contrast": mean_over_classes(pulls, labels, used, prototypes.count),
            "consistency": mean_over_classes(distances, labels, used, prototypes.count),
        }
