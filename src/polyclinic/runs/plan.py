"""From a recipe to sites with prepared data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.build_imageset import build_imageset
from polyclinic.data.federation import Federation, Item, item_header
from polyclinic.data.imageset import ImageSet
from polyclinic.data.open_federation import open_federation
from polyclinic.data.preprocessing import resolve_size
from polyclinic.data.sitedata import SiteData
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.federation.site import require_labels
from polyclinic.federation.workspace import Workspace
from polyclinic.networks import build_network
from polyclinic.recipe import Recipe


def open_for(recipe: Recipe) -> tuple[Federation, Recipe]:
    """Open the recipe's federation and write down the sizes and units that the recipe left to us."""
    federation = open_federation(recipe.federation, recipe.data)
    network = build_network(federation.task, recipe.network, recipe.seed)
    data = recipe.data
    if data.patch is not None and len(data.patch) != federation.task.spatial_dims:
        raise PolyclinicError(f"data.patch = {list(data.patch)} does not fit a {federation.task.spatial_dims}D task.")
    if data.size == "auto" and data.patch is None:
        size = resolve_size(federation, data, network.multiple)
        recipe = recipe.model_copy(update={"data": data.model_copy(update={"size": size})})
    shown = recipe.data.patch or recipe.data.size
    if isinstance(shown, tuple):
        _require_room(shown, network.multiple, federation.task.spatial_dims)
    evaluation = recipe.evaluation.model_copy(update={"units": _units(federation, recipe)})
    return federation, recipe.model_copy(update={"evaluation": evaluation})


def _units(federation: Federation, recipe: Recipe) -> str:
    """Millimetres only if every site's files know their spacing: an average must not mix two units."""
    headers = {site: item_header(items[0]) for site, items in federation.sites.items()}
    unknown = [
        site
        for site, header in headers.items()
        if header.affine is None and federation.task.nominal_spacing(len(header.shape)) is None
    ]
    if recipe.evaluation.units == "mm" and unknown:
        raise PolyclinicError(
            f"evaluation.units = 'mm', but the files of site '{unknown[0]}' do not know their spacing; "
            "write 'spacing' into federation.toml or use 'pixel'."
        )
    return recipe.evaluation.units if recipe.evaluation.units != "auto" else "pixel" if unknown else "mm"


def _require_room(size: tuple[int, ...], multiple: int, dims: int) -> None:
    if len(size) != dims:
        raise PolyclinicError(f"data.size = {list(size)} does not fit a {dims}D task; give {dims} numbers.")
    if min(size) < multiple or max(size) < 2 * multiple:
        raise PolyclinicError(
            f"Images of size {list(size)} are too small for this network, whose deepest map would hold a single pixel "
            f"or none; use data.size of at least {2 * multiple} or a network that pools less (network.depth or patch)."
        )


def cache_for(recipe: Recipe) -> Path | None:
    """Folder for memory-mapped tensors, if the recipe names one."""
    return Path(recipe.data.cache).expanduser() if recipe.data.cache else None


def prepare_items(federation: Federation, recipe: Recipe, items: Sequence[Item]) -> ImageSet:
    """Images of one site, prepared."""
    return build_imageset(items, federation, recipe.data, cache_for(recipe))


def site_data(site: str, images: ImageSet, part: ProtocolPart) -> SiteData:
    """A site's images with the indices of each split; an unseen site tests with everything."""
    unseen, split = site == part.unseen, part.split
    parts = ["test" if unseen else split.of[sample.site, sample.name] for sample in images.samples]
    indices = {
        name: torch.tensor([i for i, part in enumerate(parts) if part == name], dtype=torch.long)
        for name in ("train", "val", "test")
    }
    return SiteData(site, images, indices)


def require_some_label(training: Sequence[SiteData]) -> None:
    """Stop where nobody could show the network what to look for."""
    if not any(len(data.training_indices(True)) for data in training):
        names = ", ".join(data.site for data in training)
        raise PolyclinicError(
            f"No training image of {names} has a label; add masks to the folder labels of at least one site."
        )


def budget_warnings(training: Sequence[SiteData], recipe: Recipe) -> list[str]:
    """Sites with fewer labels than ``data.labelled`` would allow."""
    counts = {data.site: len(data.training_indices(True)) for data in training}
    budget = recipe.data.labelled
    return [
        f"{site} has {count} labelled training images (or slices), fewer than data.labelled = {budget}."
        for site, count in counts.items()
        if isinstance(budget, int) and count < budget
    ]


def require_training_data(data: SiteData, workspace: Workspace) -> None:
    """Stop before the run starts when a site could not take part."""
    if workspace.learns_unlabelled:
        if not len(data.training_indices()):
            raise PolyclinicError(
                f"Site '{data.site}' has no training image; change the split or leave the site out with data.sites."
            )
        return
    require_labels(data)
