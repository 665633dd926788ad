"""What a whole round computes at all sites and at the server, from what was counted for one image."""

from __future__ import annotations

from typing import NamedTuple

from polyclinic.data.batches import steps_per_epoch
from polyclinic.data.federation import Federation
from polyclinic.data.preprocessing import geometry_of
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.federation.server import count_of
from polyclinic.preview.shape_rehearsal import Count
from polyclinic.recipe import Recipe, TrainingSettings


class SiteImages(NamedTuple):
    """How many images, or slices, a site trains with."""

    labelled: int
    unlabelled: int


def training_images(federation: Federation, recipe: Recipe, part: ProtocolPart) -> dict[str, SiteImages]:
    """By site, from headers alone."""
    found = {}
    for site in part.train_sites:
        train = {item.name for item in part.split.items(federation, site, "train")}
        labelled = total = 0
        for item in part.items(federation, site):
            if item.name not in train:
                continue
            slices = geometry_of(item, federation, recipe.data).samples if federation.volumes_as_slices else 1
            total += slices
            read = slices if item.labelled_slices is None else len(item.labelled_slices)
            labelled += read if item.label is not None else 0
        found[site] = SiteImages(labelled, total - labelled)
    return found


def images_in_steps(images: SiteImages, training: TrainingSettings) -> int:
    """Images that the steps of a site's round see, each as often as it is seen."""
    if training.steps_per_epoch is None and not images.unlabelled:
        return images.labelled * training.local_epochs
    steps = steps_per_epoch(*images, training.batch_size, training.steps_per_epoch)
    return training.local_epochs * steps * sum(min(training.batch_size, number) for number in images)


def round_flops(count: Count, recipe: Recipe, sites: dict[str, SiteImages]) -> dict[str, float]:
    """FLOPs of a round of the recipe: the steps of all sites, what sites do besides them, and the server's work.

    What a site does besides its steps was counted for one batch, and is taken to grow with the site's images.
    """
    flops, rehearsed = count.flops, count.rehearsal
    learns = rehearsed.workspace.learns_unlabelled
    used = [images if learns else SiteImages(images.labelled, 0) for images in sites.values()]
    if rehearsed.workspace.method.pooled:
        used = [SiteImages(*map(sum, zip(*used, strict=True)))]
    counted = rehearsed.sites[0].seen
    chosen = count_of(recipe.training.participation, len(used)) / len(used)
    steps = chosen * flops.training * sum(images_in_steps(images, recipe.training) for images in used)
    besides = chosen * flops.site_besides_steps * sum(map(sum, used)) / counted
    parts = {"steps": steps, "site_besides_steps": besides, "server": float(flops.server)}
    return {**parts, "total": sum(parts.values())}
