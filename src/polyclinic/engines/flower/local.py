"""A whole Flower federation on this machine: server and sites in processes of their own, with TLS and keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from polyclinic.engines.flower.coordinator import Coordinator, Place
from polyclinic.engines.flower.hospital import Hospital, Line
from polyclinic.engines.flower.plan import Plan, run_name
from polyclinic.engines.flower.processes import free_port, require_flower
from polyclinic.engines.flower.settings import SiteSettings
from polyclinic.errors import PolyclinicError
from polyclinic.federation.observer import Observer
from polyclinic.files import write_text
from polyclinic.keys import make_demo_keys
from polyclinic.recipe import Recipe
from polyclinic.recipe_files import recipe_text


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
        "device": recipe.engine.device, **({"encoder": recipe.network.weights} if recipe.network.weights else {}),
    }  # fmt: skip
    plan = Plan(run_name(folder), recipe_text(recipe), sites, name, not simulated, True)
    with ExitStack() as stack, TemporaryDirectory(prefix="polyclinic-keys-") as keys:
        place = Place("127.0.0.1", free_port(), None)
        if not simulated:
            server = make_demo_keys(Path(keys) / "keys", list(sites), ["127.0.0.1"])
            place = Place(place.host, place.port, server.folder)
        limit = int(recipe.engine.max_message_mb * 2**20)
        coordinator = stack.enter_context(Coordinator(folder, place, observer, limit, simulated))
        hospitals: list[Hospital] = []
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
def _hospital(recipe: Recipe, site: str, folder: Path, keys: Path, place: Place, policy: Path) -> Iterator[Hospital]:
    home = folder / "sites" / site
    home.mkdir(parents=True, exist_ok=True)
    settings = SiteSettings(
        site,
        recipe.federation,
        str(home.resolve()),
        str(policy.resolve()),
        recipe.engine.device,
        recipe.network.weights,
    )
    own = keys / "hospitals" / site
    with (home / "site.log").open("a", encoding="utf-8") as log:

        def say(text: str) -> None:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            log.flush()

        with Hospital(settings, Line(place.local, own / f"{site}.key", own / "ca.crt"), say) as hospital:
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
