"""FedMix: mixup with the other sites' images, of which only means are known.

Paper: Yoon et al., *FedMix: Approximation of Mixup under Mean Augmented Federated Learning*, ICLR 2021. Every site
sends means of ``images`` training images and of their labels, once; every site gets all of them. With a mean ``xg, yg``
drawn in every step, ``l = lam``, ``L`` the recipe's loss and ``x' = (1 - l) x``, mixup's loss to first order:

(1) ``(1 - l) L(f(x'), y) + l L(f(x'), yg) + l (1 - l) <dL(f(x'), y) / dx', xg>``        ``form = "taylor"``
(2) ``(1 - l) L(f(x"), y) + l L(f(x"), yg)``,  ``x" = (1 - l) x + l xg``                 ``form = "naive"``, NaiveMix

``yg`` are the shares of the classes in every pixel. The inner product is summed over the images of a batch, whose mean
``L`` is. (1) differentiates a gradient, which keeps the graph of a backward pass too: it takes more time and memory
than (2). With ``lam = 0`` this is FedAvg.

**Pictures leave the site.** A mean of five scans of one organ shows that organ, and more than one grouping of the same
images can be subtracted. Therefore a mean is always of ``images`` different cases, never fewer: what is left over is
not sent, and a site with fewer cases sends nothing. Who is averaged with whom follows from the names of the cases, not
from the recipe's seed, so that the same training images give the same means in every run. A site's policy lets the
means out only where it names them (``shared = ["fedmix/*"]``) and ``images`` is at least its ``minimum_images``.

Departures. Means are sent in a site's first round, so that the first round is FedAvg's, and at most ``averages`` of
them (the paper: all); labels travel as counts. A site whose means did not arrive sends the same again. Where images
have no common size, patches of the training's size are averaged, or images stretched to the first one's size, and a
mean is stretched to the batch's size. Averaged are images as they are, batches are augmented. (The FedMix of Wicaksana
et al., for mixed labels, is another method.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.rounds import ServerRound, SiteRound
from polyclinic.components.step import Step
from polyclinic.components.toolbox.segmentation_loss import loss_options, segmentation_loss, soft_label_loss
from polyclinic.core.seeds import generator_for, owner_number
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Tensors
from polyclinic.networks.base import SegmentationNetwork

if TYPE_CHECKING:
    from polyclinic.data.sitedata import SiteData

_AXES = ("depth", "height", "width")
_LIFT = 2.0**10  # of a loss before it is differentiated by the image: in half precision its slopes would be zeros


def groups_of_cases(cases: Sequence[str], size: int) -> list[list[int]]:
    """Positions in groups of exactly ``size`` different cases, each position at most once, the same in every run."""
    by_case: dict[str, list[int]] = defaultdict(list)
    for position, case in enumerate(cases):
        by_case[case].append(position)
    order = sorted(by_case, key=lambda case: blake2b(f"{size}\x1f{case}".encode()).digest())
    groups = []
    for layer in range(max(map(len, by_case.values()), default=0)):
        positions = [by_case[case][layer] for case in order if len(by_case[case]) > layer]
        groups += [positions[start : start + size] for start in range(0, len(positions) - size + 1, size)]
    return groups


@component
class FedMix(Component):
    """Trains on mixtures with means of the other sites' images, by a first-order approximation."""

    name = "fedmix"
    level = "objective"
    paper = "Yoon et al., ICLR 2021"
    equations = (
        "FedMix: (1 - l) L(f(x'), y) + l L(f(x'), yg) + l (1 - l) <dL(f(x'), y) / dx', xg>, x' = (1 - l) x",
        'NaiveMix: (1 - l) L(f(x"), y) + l L(f(x"), yg), x" = (1 - l) x + l xg',
    )
    comes_back = "the means of images and labels of every site, with a number that stands for the site's name"
    strength = "lam"

    class Settings(ComponentSettings):
        """The paper's ratio and number of images."""

        lam: float = Field(0.05, ge=0, lt=1, description="lambda, the share of the averaged image; the paper: to 0.2")
        images: int = Field(5, ge=2, le=255, description="M_k: images, of as many cases, behind each mean that leaves")
        averages: int = Field(16, ge=1, description="means that a site sends at most; the paper: all")
        form: Literal["taylor", "naive"] = Field("taylor", description="equation 1, or 2, which costs less")

    def used_equations(self) -> tuple[str, ...]:
        """One of the two."""
        return self.equations[:1] if self.settings.form == "taylor" else self.equations[1:]

    def leaves(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """The means, in the first round in which the server does not have them; then none."""
        if not self.settings.lam:
            return ()
        chosen, size = self.settings, self.context.image_size or _AXES[-network.spatial_dims :]
        shape: tuple[str | int, ...] = ("means", network.channels, *size)
        classes = len(self.context.task.classes)
        what = f"of {chosen.images} training images of as many cases"
        return (
            Shared("images", shape, f"PICTURES: means {what}", at_most=chosen.averages, pictures_of=chosen.images),
            Shared("labels", ("means", classes, *size), f"PICTURES: how often each class is there, {what}", torch.uint8,
                   below=chosen.images + 1, at_most=chosen.averages, pictures_of=chosen.images),
        )  # fmt: skip

    def returns(self, network: SegmentationNetwork) -> tuple[Shared, ...]:
        """The means of each site."""
        return tuple(replace(one, name=f"{one.name}/*", pictures_of=None) for one in self.leaves(network))

    # ---- site half -----------------------------------------------------------------------------------------------

    def receive(self, site: SiteRound, shared: Mapping[str, Tensor]) -> None:
        """Lay out the means of all sites, one a row."""
        owners = [name.removeprefix("images/") for name in sorted(shared) if name.startswith("images/")]
        self._arrived = str(owner_number(site.site)) in owners
        self._means = [
            (image, label)
            for owner in owners
            for image, label in zip(shared[f"images/{owner}"], shared[f"labels/{owner}"], strict=True)
        ]

    def on_images(self, step: Step) -> None:
        """``x'``, ready to be differentiated, or ``x"``."""
        if not self.settings.lam or not self._means or not len(step.images):
            return
        lam = self.settings.lam
        if self.settings.form == "naive":
            step.images = torch.lerp(step.images, self._drawn(step)[0].expand_as(step.images), lam)
        else:
            step.images = ((1 - lam) * step.images).requires_grad_()

    def objective(self, step: Step) -> Tensor | None:
        """Equation 1 or 2; the recipe's own loss before there are means."""
        if not self.settings.lam or not self._means:
            return None
        lam, images = self.settings.lam, step.images
        logits, (mean, shares) = step.labelled.logits, self._drawn(step)
        chosen = loss_options(self.context.training, self.context.policies)
        own: Tensor = (1 - lam) * segmentation_loss(logits, step.labels, **chosen)
        total: Tensor = own + lam * soft_label_loss(logits, shares, **chosen)
        if self.settings.form == "naive":
            return total
        (slope,) = torch.autograd.grad(own * _LIFT, images, create_graph=True)
        return torch.add(total, (slope.float() * mean).sum(), alpha=lam / _LIFT)

    def _drawn(self, step: Step) -> tuple[Tensor, Tensor]:
        """The step's mean ``(1, channel, *spatial)`` and its shares ``(1, class, *spatial)``, as large as the batch."""

        def draw() -> tuple[Tensor, Tensor]:
            image, label = self._means[int(torch.randint(len(self._means), (1,), generator=step.generator))]
            shares = label.float() / self.settings.images
            return _stretched(image, step.images), _stretched(shares, step.images)

        return step.once(f"{self.name}/mean", draw)

    def pictures(self, data: SiteData) -> list[list[int]]:
        """All groups, those beyond ``averages`` too: a run with more of them is then no other grouping."""
        if not self.settings.lam:
            return []
        rows = data.training_indices(True).tolist()
        groups = groups_of_cases([data.images.samples[row].case for row in rows], self.settings.images)
        return [[rows[position] for position in group] for group in groups]

    def share(self, site: SiteRound) -> Tensors:
        """The means, unless the server has them."""
        if not self.settings.lam:
            return {}
        sent = [] if self._arrived else self.pictures(site.data)[: self.settings.averages]
        means = [self._mean(site, torch.tensor(group)) for group in sent]
        if not means:
            axes = self.context.image_size or (1,) * site.network.spatial_dims
            classes = len(self.context.task.classes)
            return {
                "images": torch.zeros(0, site.network.channels, *axes),
                "labels": torch.zeros(0, classes, *axes, dtype=torch.uint8),
            }
        return {name: torch.stack(tensors) for name, *tensors in zip(("images", "labels"), *means, strict=True)}

    def _mean(self, site: SiteRound, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The mean ``(channel, *spatial)`` of a group's images, and counts ``(class, *spatial)`` of its labels."""
        classes, size = len(self.context.task.classes), self.context.image_size
        generator, pictures = generator_for(0, self.name, *map(int, rows)), site.data.images
        total, counts = torch.zeros(()), torch.zeros((), dtype=torch.uint8)
        for row in rows[:, None]:
            image, label = pictures.patches(row, size, generator) if size else pictures.batch(row)
            if total.dim():
                image = _stretched(image[0], total[None])
                label = F.interpolate(label[:, None].float(), total.shape[1:]).long()[:, 0]
            total = total + image[0]
            counts = counts + F.one_hot(label[0], classes).movedim(-1, 0).to(torch.uint8)
        return total / len(rows), counts

    # ---- server half ---------------------------------------------------------------------------------------------

    def combine(self, server: ServerRound, shared: dict[str, Tensors]) -> Tensors:  # noqa: ARG002
        """All means that ever came, those of each site by its number."""
        for site, tensors in shared.items():
            if len(tensors["images"]) or f"images/{owner_number(site)}" not in self.state:
                self.state |= {f"{name}/{owner_number(site)}": tensor for name, tensor in tensors.items()}
        return dict(self.state)


def _stretched(picture: Tensor, like: Tensor) -> Tensor:
    """A picture ``(channel, *spatial)`` as ``(1, channel, *spatial)`` of the size and on the device of ``like``."""
    picture = picture[None].to(like.device)
    if picture.shape[2:] == like.shape[2:]:
        return picture
    mode = "bilinear" if like.dim() == 4 else "trilinear"
    return F.interpolate(picture, like.shape[2:], mode=mode, align_corners=False)
