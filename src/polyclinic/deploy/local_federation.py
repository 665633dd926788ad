"""A whole Flower federation on this machine: server and sites in processes of their own, with TLS and keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.deploy.coordinator.launch import Launch, run_name
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor, ListenAddress
from polyclinic.deploy.keys.key_folders import make_demo_keys
from polyclinic.deploy.processes import free_port, require_flower
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import ServerConnection, SiteSupervisor
from polyclinic.engines.registry import launcher
from polyclinic.federation.observer import Observer
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import recipe_text


@launcher(
    "flower", "server and sites in processes of their own on this machine, speaking over Flower with TLS and keys"
)
@launcher("simulation", "Flower's own simulation, with Ray")
def run_on_this_machine(recipe: Recipe, sites: tuple[str, ...], name: str, folder: Path, observer: Observer) -> None:
    """Run a recipe whose federation lies here to its end; raises where it cannot be finished."""
    require_flower()
    _require_ray(recipe)
    simulated = sites if recipe.engine.name == "simulation" else ()
    # The policy of a federation on one machine: everything is in one pair of hands.
    policy = folder / "sites" / "policy.toml"
    allowed = {"per_case_metrics": "named", "minimum_images": 1, "plugins": list(recipe.plugins)}
    write_text(policy, tomli_w.dumps(allowed))
    settings = {
        "data": recipe.federation, "sites": json.dumps(sites), "homes": str((folder / "sites").resolve()),
        "device": recipe.engine.device,
        **({"encoder": recipe.network.weights_file} if recipe.network.weights_file else {}),
    }  # fmt: skip
    plan = Launch(run_name(folder), recipe_text(recipe), sites, name, not simulated, True)
    with ExitStack() as stack, TemporaryDirectory(prefix="polyclinic-keys-") as keys:
        place = ListenAddress("127.0.0.1", free_port(), None)
        if not simulated:
            server = make_demo_keys(Path(keys) / "keys", list(sites), ["127.0.0.1"])
            place = ListenAddress(place.host, place.port, server.folder)
        limit = int(recipe.engine.max_message_mb * 2**20)
        coordinator = stack.enter_context(CoordinatorSupervisor(folder, place, observer, limit, simulated))
        hospitals: list[SiteSupervisor] = []
        if not simulated:
            coordinator.accept_sites(sites)
            hospitals = [
                stack.enter_context(_hospital(recipe, site, folder, Path(keys) / "keys", place, policy))
                for site in sites
            ]

        def look_after() -> None:
            for hospital in hospitals:
                hospital.look()

        coordinator.serve(plan, folder, settings if simulated else {}, look_after)


@contextmanager
def _hospital(
    recipe: Recipe, site: str, folder: Path, keys: Path, place: ListenAddress, policy: Path
) -> Iterator[SiteSupervisor]:
    home = folder / "sites" / site
    home.mkdir(parents=True, exist_ok=True)
    settings = SiteSettings(
        site,
        recipe.federation,
        str(home.resolve()),
        str(policy.resolve()),
        recipe.engine.device,
        recipe.network.weights_file,
    )
    own = keys / "hospitals" / site
    with (home / "site.log").open("a", encoding="utf-8") as log:

        def say(text: str) -> None:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            log.flush()

        with SiteSupervisor(
            settings, ServerConnection(place.local, own / f"{site}.key", own / "ca.crt"), say
        ) as hospital:
            yield hospital


def _require_ray(recipe: Recipe) -> None:
    if recipe.engine.name != "simulation":
        return
    try:
        import ray  # noqa: F401
    except ImportError:
        raise PolyclinicError(
            "engine.name = 'simulation' needs Ray; run: pip install 'polyclinic[simulation]'."
        ) from None
