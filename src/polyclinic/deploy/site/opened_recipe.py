"""A recipe as a site runs it: its own folder and device in it, and what is built for it once, for many requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import MB
from polyclinic.data.build_imageset import is_cached, prepared_bytes
from polyclinic.data.federation import Federation, Item
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.deploy.site.admission import refuse
from polyclinic.deploy.site.disk_limits import tidy_home
from polyclinic.deploy.site.local_recipe import with_local_settings
from polyclinic.deploy.site.recipe_checks import refusal_before_data
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.site_secret import SiteSecret
from polyclinic.deploy.site.work_limits import refusal_of_images
from polyclinic.evaluation.protocols import ProtocolPart, site_part, split_files
from polyclinic.federation.site_policy import Policy
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import make_recipe, parse_recipe
from polyclinic.recipe.fingerprint import LONGEST_RECIPE
from polyclinic.runs.plan import plan_run, prepare_items, site_data


@dataclass
class OpenedRecipe:
    """A recipe with the federation, the network and the images that were made for it.

    ``log`` is the site's; ``processes`` prepare images, as many as there are cores by default.
    """

    text: str
    recipe: Recipe
    federation: Federation
    workspace: Workspace
    settings: SiteSettings
    log: Callable[[str], None]
    processes: int | None
    _images: dict[tuple[Item, ...], ImageSet] = field(default_factory=dict)
    _data: dict[str, SiteData] = field(default_factory=dict)

    @classmethod
    def open(
        cls, text: str, policy: Policy, settings: SiteSettings, log: Callable[[str], None], processes: int | None
    ) -> OpenedRecipe:
        """Build what a recipe's text asks for, after all that can be refused without a look at the data."""
        origin = "the server's recipe"
        if len(text) > LONGEST_RECIPE:
            raise PolyclinicError(f"{origin}: has {len(text)} characters, a site reads up to {LONGEST_RECIPE}.")
        recipe = make_recipe(with_local_settings(parse_recipe(text, origin), settings, log), origin)
        refuse(refusal_before_data(policy, recipe))
        if settings.cache is None:
            recipe = with_changes(recipe, {"data.cache_limit_mb": policy.max_home_gb * 1e9 / MB})
        plan = plan_run(recipe)
        # Units were agreed on for all sites, whatever the files of this site say.
        plan = replace(plan, recipe=with_changes(plan.recipe, {"evaluation": recipe.evaluation}))
        return cls(text, plan.recipe, plan.federation, plan.open_workspace(), settings, log, processes)

    @property
    def home(self) -> Path:
        """The site's home."""
        return Path(self.settings.home)

    @property
    def secret(self) -> SiteSecret:
        """The site's secret."""
        return SiteSecret(self.home)

    def part(self, name: str, policy: Policy) -> ProtocolPart:
        """The part of the protocol with its split and labels, drawn by the seed that the policy names."""
        recipe = self.recipe
        if policy.split == "own":
            seed = int(self.secret.fingerprint("split")[:15], 16)
            # Without the server's seed of labels: with it a server could ask for one set of labels after another.
            recipe = with_changes(recipe, {"seed": seed, "data.label_seed": None, "data.split_from": "auto"})
        return site_part(self.federation, recipe, self.settings.name, name, self.workspace.method.all_labels)

    def data(self, part: ProtocolPart, policy: Policy, run: str) -> SiteData:
        """The site's prepared images for a part of the protocol; images of the last part are reused if possible."""
        key = self.secret.fingerprint("\n".join([run, part.name, *split_files([part]).values()]))
        if key not in self._data:
            items = part.items(self.federation, self.settings.name)
            if items not in self._images:
                recipe = self._with_room(items, policy, run)
                self.log(f"reading {len(items)} images")
                self._images = {items: prepare_items(self.federation, recipe, items, self.processes, self.log)}
            folder = self.home / "runs" / run / part.name
            self._data = {key: site_data(self.settings.name, self._images[items], part, folder, fixed=True)}
        return self._data[key]

    def _with_room(self, items: tuple[Item, ...], policy: Policy, run: str) -> Recipe:
        """The recipe, without the cache if the home has no room for it; refuses what fills the memory or the disk.

        No image is read before.
        """
        recipe, federation = self.recipe, self.federation
        total, largest = prepared_bytes(items, federation, recipe.data)
        fits = total <= recipe.data.memory_limit_mb * MB
        if recipe.data.cache != "off":
            refuse(refusal_of_images(policy, largest))
            reason = None
            if self.settings.cache is None and not is_cached(items, federation, recipe.data):
                reason = tidy_home(self.home, policy, run, self.log, total, spare_runs=fits)
            if reason is None:
                return recipe
            refuse(None if fits else reason)
            self.log(f"prepared images stay in memory: {reason}")
        refuse(refusal_of_images(policy, total))
        return with_changes(recipe, {"data.cache": "off"})
