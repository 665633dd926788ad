"""``polyclinic server``: from a recipe and a folder of keys to a trained model, with sites on other machines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.engines.flower.coordinator import Coordinator, Place
from polyclinic.engines.flower.plan import Plan, run_name
from polyclinic.engines.flower.processes import require_flower
from polyclinic.errors import PolyclinicError
from polyclinic.federation.observer import Observer
from polyclinic.keys import ServerKeys, accepted
from polyclinic.recipe import Recipe
from polyclinic.recipe_files import recipe_text
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.remote import refuse_impossible

_LINGER = 3.0  # seconds in which those who watch from elsewhere see that the run is finished


@dataclass(frozen=True)
class ServerSettings:
    """Where to listen, and who may come: the sites of ``keys``, or without keys those of ``sites``."""

    host: str
    port: int
    keys: Path | None
    sites: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """The sites of the federation."""
        if self.keys is None:
            if not self.sites:
                raise PolyclinicError("--insecure knows sites by name only; name them with --sites north,south.")
            return tuple(sorted(self.sites))
        known = tuple(accepted(self.keys))
        unknown = sorted(set(self.sites) - set(known))
        if unknown:
            raise PolyclinicError(
                f"--sites: {unknown[0]} has no key in {self.keys}; accept it with polyclinic keys accept."
            )
        if not known:
            raise PolyclinicError(
                f"{ServerKeys(self.keys).sites}: no site is accepted yet; use polyclinic keys accept."
            )
        return tuple(sorted(self.sites)) or known


def coordinate(
    recipe: Recipe, out: Path, settings: ServerSettings, observer: Observer, resume: bool = False
) -> dict[str, Any]:
    """Serve a run to its end and give back its summary; raises where it cannot be finished."""
    require_flower()
    recipe = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"name": "flower"})})
    refuse_impossible(recipe)
    folder, sites = RunFolder(out), settings.names()
    finished = folder.summary()
    if finished is not None and resume:
        return finished
    if folder.started() and not resume:
        raise PolyclinicError(f"{out}: already holds a run; go on with --resume or choose another folder with --out.")
    place = Place(settings.host, settings.port, settings.keys)
    named = settings.keys is not None
    text = recipe_text(recipe)
    plan = Plan(run_name(out, text), text, sites, Path(recipe.federation).name, named, resume)
    with Coordinator(out, place, observer, int(recipe.engine.max_message_mb * 2**20)) as coordinator:
        if named:
            coordinator.accept_sites(sites)
        observer.on_message(f"listening on {settings.host}:{settings.port} for {', '.join(sites)}")
        coordinator.serve(plan, out)
        time.sleep(_LINGER)
    summary = folder.summary()
    assert summary is not None
    return summary
