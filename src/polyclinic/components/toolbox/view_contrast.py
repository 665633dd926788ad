"""Two views of every image, compared: the second one, and the base of components that compare pooled bottlenecks.

The first view is the image as the step has it, with the recipe's augmentation, whose pass has happened. The second is
drawn from it and needs an encoder pass of its own, with gradients. Nothing else is computed twice.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.step import Step
from polyclinic.components.toolbox.contrast import projection_head
from polyclinic.components.toolbox.prototypes.taps import map_of
from polyclinic.data.augmentation import Augmentation
from polyclinic.networks.base import Features, SegmentationNetwork, without_statistics
from polyclinic.recipe import AugmentationSettings


class IntensityViewSettings(ComponentSettings):
    """How the intensities of the second view differ."""

    scale: Annotated[float, Field(ge=0, lt=1)] = Field(0.25, description="contrast from 1 - scale to 1 + scale")
    shift: float = Field(0.1, ge=0, description="deviation of an added shift, in image standard deviations")
    noise: float = Field(0.1, ge=0, description="deviation of added noise, in image standard deviations")


class ViewSettings(IntensityViewSettings):
    """How the second view differs."""

    flip: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="probability of mirroring each axis")


def second_view(images: Tensor, settings: IntensityViewSettings, generator: torch.Generator) -> Tensor:
    """A changed copy of ``(batch, channel, *spatial)``: mirrored where the settings can say so, then intensities."""
    scale = settings.scale
    changes = AugmentationSettings(
        flip=getattr(settings, "flip", 0.0),
        contrast=float(scale > 0), contrast_range=(1 - scale, 1 + scale),
        brightness=float(settings.shift > 0), brightness_strength=settings.shift,
        noise=float(settings.noise > 0), noise_strength=settings.noise,
    )  # fmt: skip
    return Augmentation(changes)(images, None, generator)[0]


def map_of_second_view(step: Step, component: Component, tap: str = "bottleneck") -> Tensor:
    """The map of a tap for the second view ``(batch, channel, *spatial)``; decoders run only if the tap is theirs.

    The view is drawn once in a step, whose passes all see the same. Running statistics stay those of the first view.
    """
    make = lambda: second_view(step.images, component.settings, step.generator)  # noqa: E731
    images = step.once(f"{component.name}/view", make)
    with without_statistics(step.network):
        pyramid = step.network.encode(images)
        decoder = step.network.decode(pyramid) if tap.startswith("decoder") else []
    return map_of(Features(pyramid, decoder, logits=pyramid[0][:0]), tap)  # nobody asks for logits


class ViewContrast(Component):
    """Compares the pooled, possibly projected bottlenecks of both views of the labelled images.

    ``compare`` is the subclass's. Settings: ``gamma``, the weight, and ``projection``, the width of a head in
    ``network.extras`` that is averaged with all weights, 0 for none.
    """

    level = "objective"
    strength = "gamma"

    def install(self, network: SegmentationNetwork) -> None:
        """The projection, if there is one."""
        if self.settings.gamma and self.projection:
            network.extras[self.name] = projection_head(network.widths["bottleneck"], self.projection)

    @property
    def projection(self) -> int:
        """Width of the head, 0 for none."""
        return int(getattr(self.settings, "projection", 0))

    def warnings(self) -> list[str]:
        """A batch of one has no negatives."""
        if self.settings.gamma and self.context.training.batch_size == 1:
            return [f"{self.name} compares the images of a batch, and training.batch_size = 1 leaves it nothing to do."]
        return []

    def has_negatives(self, step: Step) -> bool:
        """Whether there is anything to tell an image from."""
        return len(step.images) > 1

    def loss(self, step: Step) -> dict[str, Tensor]:
        """The weighted term; none, and no pass, where there is nothing to compare."""
        if not self.settings.gamma or not len(step.images) or not self.has_negatives(step):
            return {}
        maps = step.labelled.encoder[-1], map_of_second_view(step, self)
        with torch.autocast(step.images.device.type, enabled=False):
            views = torch.stack([bottleneck.float().flatten(2).mean(2) for bottleneck in maps])
            if self.projection:
                views = step.network.extras[self.name](views)
            return {self.name: self.settings.gamma * self.compare(step, views[0], views[1])}

    def compare(self, step: Step, first: Tensor, second: Tensor) -> Tensor:
        """The term of two views ``(batch, width)`` of the same images in the same order."""
        raise NotImplementedError(f"{type(self).__name__} compares nothing")
