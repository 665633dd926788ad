"""The images that a finished run was tested with, where they are still at hand, and the parts of its protocol."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import printable_line
from polyclinic.data.federation import Federation, Item
from polyclinic.data.open_federation import open_federation
from polyclinic.evaluation.protocols import ProtocolPart, protocol_parts
from polyclinic.recipe import Recipe
from polyclinic.runs.tested_models import TestedModels

# Keys that say nothing of how a test image is prepared.
_ABOUT_TRAINING = {
    "labelled", "label_seed", "patch", "foreground", "split", "split_from", "memory_limit_mb", "cache", "cache_limit_mb"
}  # fmt: skip


@dataclass(frozen=True)
class TestedData:
    """Where test images are. ``by_slice`` says that slices of volumes were scored one by one."""

    __test__ = False  # no class of tests, whatever its name says to pytest

    recipe: Recipe
    federation: Federation
    parts: dict[str, ProtocolPart]
    by_slice: bool
    models: TestedModels | None = None
    """Of the run, whose folder has the numbers that sites were scaled by."""

    def federation_of(self, part: str, site: str) -> Federation:
        """What images of a site are prepared with, as they were in a part of the protocol."""
        if self.recipe.data.intensity != "site" or self.models is None:
            return self.federation
        return replace(self.federation, intensity={site: self.models.intensity(part, site)})

    def item(self, site: str, name: str) -> Item:
        """An image by its name."""
        for item in self.federation.sites.get(site, ()):
            if item.name == name:
                return item
        raise PolyclinicError(f"{self.federation.root}: no longer holds the image '{name}' of '{site}'.")


def open_tested_data(models: TestedModels) -> TestedData:
    """Open the federation of a run; ``PolyclinicError`` where it is elsewhere, or has another task by now."""
    recipe = models.recipe
    federation = open_federation(recipe.federation, recipe.data)
    if (federation.task, federation.volumes_as_slices) != (models.task, models.sliced):
        raise PolyclinicError(f"{federation.root}: has another task now than when the run was made.")
    # Which labels may train changes no split.
    parts = {part.name: part for part in protocol_parts(federation, recipe, all_labels=True)}
    return TestedData(recipe, federation, parts, models.sliced and recipe.evaluation.per == "image", models)


def prepared_alike(models: TestedModels, data: TestedData) -> None:
    """Raise if a run prepared its images in another way than the one that ``data`` is of."""
    if models.task != data.federation.task:
        raise PolyclinicError("has another task than the reference.")
    own, other = (one.data.model_dump(exclude=_ABOUT_TRAINING) for one in (models.recipe, data.recipe))
    if different := sorted(key for key in own if own[key] != other[key]):
        raise PolyclinicError(f"prepared its images otherwise than the reference (data.{different[0]} differs).")


def reason_of(error: Exception) -> str:
    """An error as one line for a table of what is missing."""
    text = str(error) if isinstance(error, PolyclinicError) else f"{type(error).__name__}: {error}"
    return printable_line(text)
