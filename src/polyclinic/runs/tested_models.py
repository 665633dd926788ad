"""The models of a finished run as its test used them: which weights each site was tested with, part by part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json
from polyclinic.data.federation import Task
from polyclinic.data.site_intensity import INTENSITY_FILE, SiteIntensity, read_intensity
from polyclinic.evaluation.aggregate import Row
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.exchange.messages import Tensors
from polyclinic.federation.checkpoint import Checkpoint, ServerState
from polyclinic.federation.site_store import SiteStore
from polyclinic.federation.workspace import Workspace, build_workspace, choose_device
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.method_record import recorded_method
from polyclinic.runs.part_tests import PartTest
from polyclinic.runs.task_agreement import task_from


@dataclass(frozen=True)
class TestedModels:
    """A run's network, into which ``load`` puts what a site was tested with."""

    __test__ = False  # no class of tests, whatever its name says to pytest

    folder: RunFolder
    recipe: Recipe
    task: Task
    sliced: bool

    @classmethod
    def of(cls, run: Path, plugins: bool = False) -> TestedModels:
        """Those of a run folder; the device is the recipe's, or another one where this machine has none such.

        ``plugins`` allows those that the recipe names to run.
        """
        folder = RunFolder(run)
        recipe = load_recipe(folder.recipe_file)
        load_plugins(recipe.plugins, plugins)
        task, sliced = task_from(read_json(folder.path / "task.json"))
        try:
            choose_device(recipe.engine.device)
        except PolyclinicError:
            recipe = with_changes(recipe, {"engine.device": "auto"})
        return cls(folder, recipe, task, sliced)

    @cached_property
    def workspace(self) -> Workspace:
        """Network and components."""
        return build_workspace(self.recipe, self.task, recorded_method(self.folder.path, self.recipe.method))

    def where_data_is(self) -> list[Any]:
        """The recipe's federation, and whether its folder is there: pictures that could not be made can be later."""
        return [self.recipe.federation, Path(self.recipe.federation).exists()]

    def rows(self, part: str) -> list[Row]:
        """The values of the part's test, none if it has no result."""
        test = PartTest(self.folder.part(part))
        return test.rows() if test.done else []

    def load(self, part: ProtocolPart, site: str, source: str = "") -> None:
        """Fill the network as it was when ``site`` was tested, in the same steps as ``score_part``.

        ``source`` is the site whose model it was where each training site's model was tested at an unseen site: the
        column ``model`` of the values.
        """
        workspace, checkpoint = self.workspace, Checkpoint(self.folder.part(part.name))
        weights, unseen, number = checkpoint.load_model(self.recipe.training.select)
        state = checkpoint.load() or ServerState()
        best = number if self.recipe.training.select == "best" and state.best_round is not None else None
        if part.unseen == site and not source:
            workspace.load(weights, unseen)
            return
        personal: Tensors = {}
        if workspace.kept and not (workspace.method.pooled and not source):
            personal = SiteStore(self._memory(part.name, source or site)).load(before=state.round).personal_at(best)
        workspace.load(personal, weights)

    def intensity(self, part: str, site: str) -> SiteIntensity:
        """The mean and deviation that a site's images were scaled by (``data.intensity = "site"``)."""
        for folder in self._memories(part, site):
            if (folder / INTENSITY_FILE).exists():
                return read_intensity(folder)
        raise PolyclinicError(f"the mean and deviation of the images of '{site}' are at the site, not in this run.")

    def load_initial(self) -> None:
        """Fill the network as it was before the first round."""
        self.workspace.load(self.workspace.initial_exchanged)

    def _memory(self, part: str, site: str) -> Path:
        """The folder of a site's memory: the run's, or that of a site in a process of its own on this machine."""
        for folder in self._memories(part, site):
            if any(folder.glob("round-*.safetensors")):
                return folder
        raise PolyclinicError(
            f"{self.recipe.method}: the weights that '{site}' keeps are at the site, not in this run."
        )

    def _memories(self, part: str, site: str) -> list[Path]:
        """Where the memory of a site may be."""
        if Path(site).name != site:
            return []
        own = self.folder.site(part, site)
        return [own, *sorted(self.folder.path.glob(f"sites/{escape(site)}/runs/*/{escape(part)}"))]
