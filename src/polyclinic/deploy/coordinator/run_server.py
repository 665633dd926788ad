"""``polyclinic server``: run a recipe with sites on other machines, from a folder of keys to a trained model."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.core.log_file import LogFile
from polyclinic.core.wording import MB
from polyclinic.deploy.coordinator.launch import Launch, LaunchFiles, run_name
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import ServerKeys, accepted
from polyclinic.deploy.processes import require_flower
from polyclinic.federation.observer import Observer
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import changed_keys, load_recipe, recipe_text
from polyclinic.runs.folder import CHANGEABLE_KEYS, RunFolder
from polyclinic.runs.live_view import Live
from polyclinic.runs.remote_execution import refuse_impossible

_SHUTDOWN_DELAY = 3.0  # seconds in which polyclinic watch on other machines can still see that the run is finished


@dataclass(frozen=True)
class ServerSettings:
    """Where to listen and which sites may join: those with a key in ``keys``, or without keys those of ``sites``."""

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
        if not self.keys.is_dir():
            raise PolyclinicError(f"{self.keys}: no such folder; make it with polyclinic keys server.")
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


def run_server(
    recipe: Recipe, out: Path, settings: ServerSettings, observer: Observer, resume: bool = False
) -> dict[str, Any]:
    """Serve a run to its end and give back its summary; raises if it cannot be finished."""
    require_flower()
    recipe = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"name": "flower"})})
    refuse_impossible(recipe)
    folder, sites = RunFolder(out), settings.names()
    finished = folder.summary()
    if finished is not None and resume:
        _require_same_recipe(folder, recipe)
        observer.on_message("this run is finished; nothing was left to do")
        return finished
    if folder.started() and not resume:
        raise PolyclinicError(f"{out}: already holds a run; go on with --resume or choose another folder with --out.")
    address = ListenAddress(settings.host, settings.port, settings.keys)
    named = settings.keys is not None
    text = recipe_text(recipe)
    launch = Launch(run_name(out, text), text, sites, Path(recipe.federation).name, named, resume)
    Live(folder, recipe.method, launch.federation, "flower").on_message("the server starts")
    try:
        with CoordinatorSupervisor(out, address, observer, int(recipe.engine.max_message_mb * MB)) as supervisor:
            if named:
                supervisor.accept_sites(sites)
            observer.on_message(f"listening on {settings.host}:{settings.port} for {', '.join(sites)}")
            supervisor.serve(launch, out)
            time.sleep(_SHUTDOWN_DELAY)
    except BaseException as error:
        _record_stop(folder, error)
        raise
    summary = folder.summary()
    assert summary is not None
    return summary


def _require_same_recipe(folder: RunFolder, recipe: Recipe) -> None:
    """Raise if a finished run had another recipe; federation and units are not compared, the sites settled those."""
    settled = ("federation", "evaluation.units")
    for key in changed_keys(load_recipe(folder.recipe_file), recipe):
        if not key.startswith(CHANGEABLE_KEYS) and key not in settled:
            raise PolyclinicError(
                f"{folder.path}: this run is finished, with another recipe ({key} differs); choose another --out."
            )


def _record_stop(folder: RunFolder, error: BaseException) -> None:
    """Write to the live view and to ``server.log`` why the run stopped; the server's process may have been killed."""
    reason = str(error) if isinstance(error, PolyclinicError) else "interrupted"
    with suppress(OSError, PolyclinicError):
        live = folder.path / "live.json"
        view = read_json(live)
        if not view.get("finished"):
            write_json(live, {**view, "stopped": reason})
        with LogFile(LaunchFiles(folder.path).log) as log:
            log.write(f"stopped: {reason}")
