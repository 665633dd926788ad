"""Execution of a plan whose sites are all in this process."""

from __future__ import annotations

import sys
from typing import Any

from polyclinic.core.timing import recording
from polyclinic.data.federation import Item
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData, pool
from polyclinic.engines.registry import OpenEngine
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore, StateMemory
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.execution import Execution
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.part_scoring import check_test_data
from polyclinic.runs.plan import (
    RunPlan,
    budget_warnings,
    prepare_sites,
    require_some_label,
    require_training_data,
    site_data,
)

WORKER_PROGRAM = "polyclinic.runs.worker_program"
POOLED_SITE = "@pooled"  # the one site of a method that pools all data; no folder of a federation is called so


class LocalExecution(Execution):
    """Reads the images of all sites and hands the sites to an engine."""

    def __init__(self, plan: RunPlan, folder: RunFolder, open_engine: OpenEngine, observer: Observer) -> None:
        super().__init__(plan.federation.name, folder, observer)
        self.plan, self.open_engine = plan, open_engine
        self._images: dict[tuple[Item, ...], ImageSet] = {}

    def run(self) -> dict[str, Any]:
        """All parts of the plan; the summary of the run."""
        splits = {part.name: part.split.hash for part in self.plan.parts}
        return self.run_parts(self.plan.open_workspace(), self.plan.parts, splits)

    def open_server(self, workspace: Workspace, part: ProtocolPart) -> Server:
        """Prepare the images of a part, and stop before any training where a site could not take part."""
        sites, trained = self.open_sites(workspace, part)
        engine = self.open_engine(workspace, sites, self.observer)
        profile = [] if recording() is None else ["--profile"]
        engine.started_by([sys.executable, "-m", WORKER_PROGRAM, str(self.folder.path), part.name, *profile])
        self.tell_once([f"engine: {engine.about}"] if engine.about else [])
        return Server(workspace, engine, trained, self.folder.part(part.name), self.observer)

    def open_sites(self, workspace: Workspace, part: ProtocolPart) -> tuple[dict[str, Site], list[str]]:
        """All sites of a part with their prepared images, and the names of those that train."""
        data = self._data(part)
        for tested in [data[part.unseen]] if part.unseen else data.values():
            check_test_data(tested, self.plan.recipe, self.observer)
        training = self._training_data(workspace, part, data)
        memory = StateMemory()
        sites = {
            site.site: Site(site, SiteStore(self.folder.site(part.name, site.site), memory))
            for site in [*data.values(), *training]
        }
        return sites, [site.site for site in training]

    def tidy_sites(self, part: ProtocolPart, done: int, trains_on: bool) -> None:
        """All sites have their memory in the run folder."""
        for folder in self.folder.sites(part.name).values():
            SiteStore(folder).finish(done, trains_on)

    def _training_data(self, workspace: Workspace, part: ProtocolPart, data: dict[str, SiteData]) -> list[SiteData]:
        """The sites that train, as the method sees them, checked to have something to learn from."""
        method = workspace.method
        training = [data[site] for site in part.train_sites]
        if method.pooled:
            training = [pool(training, POOLED_SITE)]
        for site in training:
            require_training_data(site, workspace)
        require_some_label(training)
        if not method.all_labels and not method.pooled:
            self.warn(budget_warnings(training, self.plan.recipe))
        return training

    def _data(self, part: ProtocolPart) -> dict[str, SiteData]:
        """Prepared images of all sites that train or test, read once for neighbouring parts that use them."""
        federation, wanted = self.plan.federation, [*part.train_sites, *([part.unseen] if part.unseen else [])]
        items_by_site = {site: part.items(federation, site) for site in wanted}
        # With a budget of labels, folds see the same images with other labels: those of the last one would pile up.
        still_used = set(items_by_site.values())
        self._images = {items: images for items, images in self._images.items() if items in still_used}
        new = {site: items for site, items in items_by_site.items() if items not in self._images}
        if new:
            total = sum(map(len, new.values()))
            self.observer.on_message(f"reading {total} images of {len(new)} site{'s' if len(new) > 1 else ''}")
            prepared = prepare_sites(federation, self.plan.recipe, new, self.observer)
            self._images |= {items: prepared[site] for site, items in new.items()}
        folders, started = {site: self.folder.site(part.name, site) for site in wanted}, self.folder.started()
        return {
            site: site_data(site, self._images[items], part, folders[site], fixed=started)
            for site, items in items_by_site.items()
        }
