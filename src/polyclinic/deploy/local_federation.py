"""The engines ``flower`` and ``simulation`` on one machine: server and sites as local processes, with TLS and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.core.log_file import LogFile
from polyclinic.core.wording import MB
from polyclinic.data.prepared_cache import default_cache_folder
from polyclinic.deploy.coordinator.launch import Launch, run_name
from polyclinic.deploy.coordinator.supervisor import CoordinatorSupervisor
from polyclinic.deploy.coordinator.tls_listener import ListenAddress
from polyclinic.deploy.keys.key_folders import make_demo_keys
from polyclinic.deploy.processes import free_port, require_flower
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import SiteSupervisor
from polyclinic.engines.registry import launcher
from polyclinic.federation.observer import Observer
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import recipe_text

# All sites belong to the user who runs this: nothing has to be held back, and nobody else asks for work.
_OPEN_POLICY = {
    "per_case_metrics": "named", "minimum_images": 1, "max_steps_per_round": 10**15, "max_seconds_per_round": 1e9,
    "max_memory_gb": 1e9, "max_mb_received": 1e9, "max_home_gb": 1e9, "keep_runs_days": 1e6,
    "shared": ["*", "fedmix/*"],
}  # fmt: skip


@launcher(
    "flower", "server and sites in processes of their own on this machine, speaking over Flower with TLS and keys"
)
@launcher("simulation", "Flower's own simulation, with Ray")
def run_on_this_machine(recipe: Recipe, sites: tuple[str, ...], name: str, folder: Path, observer: Observer) -> None:
    """Run a recipe whose federation is a folder of this machine; raises if it cannot be finished."""
    require_flower()
    _require_ray(recipe)
    simulated = sites if recipe.engine.name == "simulation" else ()
    policy = folder / "sites" / "policy.toml"
    allowed = {**_OPEN_POLICY, "plugins": list(recipe.plugins)}
    write_text(policy, tomli_w.dumps(allowed))
    settings = {
        "data": recipe.federation, "sites": json.dumps(sites), "homes": str((folder / "sites").resolve()),
        "device": recipe.engine.device,
        **({"encoder": recipe.network.weights_file} if recipe.network.weights_file else {}),
        **({"case_pattern": recipe.data.case_pattern} if recipe.data.case_pattern else {}),
        "cache": _cache(recipe),
    }  # fmt: skip
    launch = Launch(run_name(folder), recipe_text(recipe), sites, name, not simulated, True)
    with ExitStack() as stack, TemporaryDirectory(prefix="polyclinic-keys-") as temporary:
        keys = Path(temporary) / "keys"
        server_keys = None if simulated else make_demo_keys(keys, list(sites), ["127.0.0.1"]).folder
        address = ListenAddress("127.0.0.1", free_port(), server_keys)
        limit = int(recipe.engine.max_message_mb * MB)
        coordinator = stack.enter_context(CoordinatorSupervisor(folder, address, observer, limit, simulated))
        supervisors: list[SiteSupervisor] = []
        if not simulated:
            coordinator.accept_sites(sites)
            supervisors = [
                stack.enter_context(_site_supervisor(recipe, site, folder, keys, address, policy)) for site in sites
            ]

        def poll_sites() -> None:
            for supervisor in supervisors:
                supervisor.poll()

        coordinator.serve(launch, folder, settings if simulated else {}, poll_sites)


@contextmanager
def _site_supervisor(
    recipe: Recipe, site: str, folder: Path, keys: Path, address: ListenAddress, policy: Path
) -> Iterator[SiteSupervisor]:
    home = folder / "sites" / site
    home.mkdir(parents=True, exist_ok=True)
    settings = SiteSettings(
        site, recipe.federation, str(home.resolve()), str(policy.resolve()), recipe.engine.device,
        recipe.network.weights_file, recipe.data.case_pattern, cache=_cache(recipe),
    )  # fmt: skip
    site_keys = keys / "hospitals" / site
    connection = ServerConnection(address.local, site_keys / f"{site}.key", site_keys / "ca.crt")
    with LogFile(home / "site.log") as log, SiteSupervisor(settings, connection, log.write) as supervisor:
        yield supervisor


def _cache(recipe: Recipe) -> str:
    """The user's own: prepared images serve other runs too, and do not belong into the folder of one."""
    return recipe.data.cache or str(default_cache_folder())


def _require_ray(recipe: Recipe) -> None:
    if recipe.engine.name != "simulation":
        return
    try:
        import ray  # noqa: F401
    except ImportError:
        raise PolyclinicError(
            "engine.name = 'simulation' needs Ray; run: pip install 'polyclinic[simulation]'."
        ) from None
