"""The plan of a run: a recipe with everything settled that it left open, made once and handed down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import torch

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.machine import prepare_process
from polyclinic.data.build_imageset import Preparation, build_imagesets
from polyclinic.data.federation import Federation, Item, Task, item_header
from polyclinic.data.imageset import ImageSet
from polyclinic.data.open_federation import open_federation
from polyclinic.data.preprocessing import resolve_size
from polyclinic.data.site_intensity import kept_intensity
from polyclinic.data.sitedata import SiteData
from polyclinic.data.voxel_grid import geometry_of
from polyclinic.evaluation.metric_registry import check_metrics
from polyclinic.evaluation.protocols import ProtocolPart, protocol_parts
from polyclinic.federation.observer import Observer
from polyclinic.federation.site import require_labels
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import Method, load_plugins
from polyclinic.networks import SegmentationNetwork, build_network
from polyclinic.networks.anisotropy import Grid, with_settled_network
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import with_checked_network

_BETWEEN_NEWS = 0.1  # seconds between two numbers of prepared images that are told


@dataclass(frozen=True)
class RunPlan:
    """What a run is about: the resolved recipe, the opened federation, the parsed method and the new network."""

    recipe: Recipe
    federation: Federation
    method: Method
    network: SegmentationNetwork
    """As it was built from the seed, without any component; ``open_workspace`` uses it up."""

    @property
    def task(self) -> Task:
        """The task that all sites share."""
        return self.federation.task

    @cached_property
    def parts(self) -> tuple[ProtocolPart, ...]:
        """The trainings of the protocol, with their splits and labels."""
        return tuple(protocol_parts(self.federation, self.recipe, self.method.all_labels))

    def open_workspace(self) -> Workspace:
        """The workspace of this plan, once: components are installed into the plan's own network."""
        return build_workspace(self.recipe, self.task, self.method, self.network)


def plan_run(recipe: Recipe, plugins: bool = True) -> RunPlan:
    """Open the recipe's federation and settle the sizes and units that the recipe left open.

    Training with a recipe allows its ``plugins`` to run; who only reads one must ask.
    """
    load_plugins(recipe.plugins, plugins)
    recipe = with_checked_network(recipe)
    check_metrics(recipe.evaluation)
    method = parse_method(recipe.method)
    federation = open_federation(recipe.federation, recipe.data)
    prepare_process(recipe.engine.threads)
    _require_patch(recipe, federation.task.spatial_dims)
    recipe = with_settled_network(recipe, lambda: _usual_grid(federation, recipe))
    network = build_network(federation.task, recipe.network, recipe.seed)
    size = _training_size(federation, recipe, network.multiples)
    resolved = with_changes(recipe, {"data.size": size, "evaluation.units": _units(federation, recipe)})
    return RunPlan(resolved, federation, method, network)


def _require_patch(recipe: Recipe, dims: int) -> None:
    if recipe.data.patch is not None and len(recipe.data.patch) != dims:
        raise PolyclinicError(f"data.patch = {list(recipe.data.patch)} does not fit a {dims}D task.")


def _usual_grid(federation: Federation, recipe: Recipe) -> Grid:
    """The median spacing of all prepared images, and the size of what the network sees of them, from headers."""
    geometries = [geometry_of(item, federation, recipe.data) for items in federation.sites.values() for item in items]
    spacings = [geometry.sample_spacing for geometry in geometries]
    if None in spacings:
        raise PolyclinicError(
            'network.anisotropic = "auto" needs the spacing of all images, and some files do not know theirs; write '
            "'spacing' into federation.toml, or give network.poolings and network.kernels."
        )
    usual = tuple(median(axis) for axis in zip(*filter(None, spacings), strict=True))
    sizes = zip(*(geometry.sample_shape for geometry in geometries), strict=True)
    return usual, recipe.data.patch or tuple(int(median(axis)) for axis in sizes)


def _training_size(federation: Federation, recipe: Recipe, multiples: tuple[int, ...]) -> tuple[int, ...] | str:
    """The value of ``data.size``, checked to leave room for the network's deepest map."""
    data, dims = recipe.data, federation.task.spatial_dims
    size = resolve_size(federation, data, multiples) if data.size == "auto" and data.patch is None else data.size
    seen_by_network = data.patch or size
    if isinstance(seen_by_network, tuple):
        _require_room(seen_by_network, multiples, dims)
    return size


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


def _require_room(size: tuple[int, ...], multiples: tuple[int, ...], dims: int) -> None:
    if len(size) != dims:
        raise PolyclinicError(f"data.size = {list(size)} does not fit a {dims}D task; give {dims} numbers.")
    shares = [axis / step for axis, step in zip(size, multiples, strict=True)]
    if min(shares) < 1 or max(shares) < 2:
        least = " x ".join(str(2 * step) for step in multiples) if len(set(multiples)) > 1 else 2 * multiples[0]
        raise PolyclinicError(
            f"Images of size {list(size)} are too small for this network, whose deepest map would hold a single pixel "
            f"or none; use data.size of at least {least} or a network that pools less (network.depth or patch)."
        )


def prepare_items(
    federation: Federation,
    recipe: Recipe,
    items: Sequence[Item],
    processes: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ImageSet:
    """Images of one site, prepared by so many processes, on all cores by default."""
    return build_imagesets({"": items}, Preparation(federation, recipe.data, processes, say=say))[""]


def prepare_sites(
    federation: Federation, recipe: Recipe, items: Mapping[str, Sequence[Item]], observer: Observer
) -> dict[str, ImageSet]:
    """Images of several sites by name, prepared side by side on all cores."""
    told = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if done == total or time.monotonic() - told > _BETWEEN_NEWS:
            told = time.monotonic()
            observer.on_preparation(done, total)

    return build_imagesets(items, Preparation(federation, recipe.data, progress=progress, say=observer.on_message))


def site_data(
    site: str, images: ImageSet, part: ProtocolPart, folder: Path | None = None, fixed: bool = False
) -> SiteData:
    """A site's images with the indices of each split; an unseen site tests with everything.

    With ``data.intensity = "site"`` they are scaled by the mean and deviation of its training images, an unseen site's
    by those of all of its images; they are kept in the site's own ``folder``, and must not change once they are
    ``fixed``.
    """
    unseen, split = site == part.unseen, part.split
    parts = ["test" if unseen else split.of[sample.site, sample.name] for sample in images.samples]
    indices = {
        name: torch.tensor([i for i, part in enumerate(parts) if part == name], dtype=torch.long)
        for name in ("train", "val", "test")
    }
    if images.moments is not None:
        rows = indices["train"] if len(indices["train"]) else torch.arange(len(images))
        intensity = images.moments.of({images.samples[row].name for row in rows.tolist()})
        images = images.by_site(intensity if folder is None else kept_intensity(folder, intensity, fixed))
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
