"""Features of test images at places of a network, site by site: of whole images, or of each class in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.components.toolbox.prototypes.views import MapView
from polyclinic.core.seeds import generator_for
from polyclinic.data.imageset import ImageSet
from polyclinic.evaluation.inference import evaluating
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.recipe.changes import with_changes
from polyclinic.runs.feature_plane import Points
from polyclinic.runs.plan import prepare_items
from polyclinic.runs.tested_data import TestedData
from polyclinic.runs.tested_models import TestedModels

_MOST_PICTURES, _MOST_VOLUMES = 20, 8  # test images of a site

Samples = dict[str, list[tuple[Tensor, Tensor]]]
"""By site: images ``(channel, *spatial)`` with their labels ``(*spatial)``."""


@dataclass(frozen=True)
class Place:
    """What is looked at: what goes into a module, or what comes out of it."""

    module: nn.Module
    goes_in: bool
    by_class: bool


def samples_of_sites(data: TestedData, part: ProtocolPart, multiples: Sequence[int]) -> Samples:
    """Some labelled test images of every site, spread over them; of a volume in a 2D task the fullest slice.

    Where patches are trained on it is one patch of each image, on foreground. Sizes are cut to the network's
    ``multiples``.
    """
    recipe = with_changes(data.recipe, {"data.cache": "off"})
    samples: Samples = {}
    for site in data.federation.sites:
        items = [
            item
            for item in data.federation.sites[site]
            if item.label is not None and (site == part.unseen or part.split.of[site, item.name] == "test")
        ]
        volumes = data.federation.volumes_as_slices or data.federation.task.spatial_dims == 3
        most = _MOST_VOLUMES if volumes else _MOST_PICTURES
        chosen = [items[place] for place in _spread(len(items), most)]
        if chosen:
            images = prepare_items(data.federation_of(part.name, site), recipe, chosen, processes=1)
            samples[site] = [_cut(*pair, multiples) for pair in _pairs(images, recipe.data.patch, recipe.seed)]
    return samples


def _spread(count: int, most: int) -> list[int]:
    places: list[int] = np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
    return places


def _pairs(images: ImageSet, patch: tuple[int, ...] | None, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    fullest: dict[str, int] = {}
    for index, sample in enumerate(images.samples):
        best = fullest.setdefault(sample.name, index)
        if images[index][1].count_nonzero() > images[best][1].count_nonzero():
            fullest[sample.name] = index
    generator = generator_for(seed, "features")
    for index in fullest.values():
        if patch is None:
            yield images[index]
        else:
            image, label = images.patches(torch.tensor([index]), patch, generator, foreground=1.0)
            yield image[0], label[0]


def _cut(image: Tensor, label: Tensor, multiples: Sequence[int]) -> tuple[Tensor, Tensor]:
    inside: tuple[slice, ...] = ()
    for size, step in zip(label.shape, multiples, strict=True):
        kept = size // step * step or size
        inside += (slice((size - kept) // 2, (size - kept) // 2 + kept),)
    return image[(slice(None), *inside)], label[inside]


def features_at(
    models: TestedModels, part: ProtocolPart, samples: Samples, places: Mapping[str, Place], initial: bool = False
) -> dict[str, Points]:
    """The features of all samples at each place by name, every site with the model that it was tested with.

    ``initial`` takes the weights before the first round instead. One image at a time, in eval mode.
    """
    rows: dict[str, list[tuple[Tensor, str, str | None]]] = {name: [] for name in places}
    network, device = models.workspace.network, models.workspace.device
    classes = models.task.classes
    for site, pairs in samples.items():
        models.load_initial() if initial else _load(models, part, site)
        for image, label in pairs:
            with torch.inference_mode(), evaluating(network), _watched(places) as seen:
                network(image[None].float().to(device))
            for name, place in places.items():
                maps = seen[name].float().cpu()
                found = _class_means(maps, label, classes) if place.by_class else [(_style(maps), None)]
                rows[name] += [(vector, site, owner) for vector, owner in found]
    return {
        name: Points(
            torch.stack([vector for vector, _, _ in own]).double() if own else torch.zeros(0, 1),
            [site for _, site, _ in own],
            [owner for _, _, owner in own],
        )
        for name, own in rows.items()
    }


def _load(models: TestedModels, part: ProtocolPart, site: str) -> None:
    """The model of a site; at a site that was left out, where each training site's model was tested, the first."""
    source = next((row.get("model", "") for row in models.rows(part.name) if row["site"] == site), "")
    models.load(part, site, source)


def _style(maps: Tensor) -> Tensor:
    """Mean and standard deviation over space of every channel, ``(1, channel, *spatial)`` to ``(2 * channel,)``."""
    deviations, means = torch.std_mean(maps[0].flatten(1).double(), dim=1, correction=0)
    return torch.cat([means, deviations])


def _class_means(maps: Tensor, label: Tensor, classes: Sequence[str]) -> list[tuple[Tensor, str | None]]:
    """The mean of each foreground class that an image has, on the grid of the map."""
    sums, counts = MapView(maps, label[None].long()).class_sums(len(classes))
    return [(sums[n] / counts[n], classes[n]) for n in range(1, len(classes)) if counts[n] > 0]


@contextmanager
def _watched(places: Mapping[str, Place]) -> Iterator[dict[str, Tensor]]:
    """What passes the places while the network runs."""
    seen: dict[str, Tensor] = {}

    def watch(name: str, place: Place) -> torch.utils.hooks.RemovableHandle:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = inputs[0] if place.goes_in else output

        return place.module.register_forward_hook(hook)

    handles = [watch(name, place) for name, place in places.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
