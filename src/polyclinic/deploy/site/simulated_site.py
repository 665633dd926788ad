"""A site of Flower's simulation: its request handler stays in one of Ray's processes between messages."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError

if TYPE_CHECKING:
    from flwr.app import Context

    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.exchange.tensor_names import Blobs


def simulate_request(blobs: Blobs, about: dict[str, Any], context: Context) -> tuple[Blobs, dict[str, Any]]:
    """Answer a request in this process, as the site that the number of the simulated node stands for."""
    config = {key: str(value) for key, value in context.run_config.items()}
    if "partition-id" not in context.node_config:
        raise PolyclinicError(
            "polyclinic's app runs in Flower's simulation only; start a site of a real federation with polyclinic site"
        )
    sites, number = site_names(config.get("sites")), int(context.node_config["partition-id"])
    if not config.get("data") or number >= len(sites):
        raise PolyclinicError(
            f"a simulation needs the federation's folder (data) and a name for each of its nodes (sites); got "
            f"{len(sites)} names for node {number + 1}"
        )
    homes = Path(config.get("homes") or Path(config.get("out", "")) / "sites").resolve()
    home, chosen = (
        str(homes / sites[number]),
        (config.get(key) for key in ("device", "encoder", "case_pattern", "cache")),
    )
    return _handler(sites[number], config["data"], home, *chosen).serve(blobs, about)


def site_names(setting: Any) -> list[str]:
    """Sorted names of sites from a run's configuration: ``north,south``, or a JSON list."""
    text = str(setting or "")
    try:
        names = json.loads(text) if text.startswith("[") else text.split(",")
    except ValueError:
        raise PolyclinicError(f"sites = '{text}': expected names such as 'north,south'.") from None
    return sorted(name.strip() for name in names if str(name).strip())


@cache
def _handler(
    name: str,
    data: str,
    home: str,
    device: str | None,
    encoder: str | None,
    case_pattern: str | None,
    cache_folder: str | None,
) -> RequestHandler:
    from polyclinic.deploy.site.request_handler import RequestHandler
    from polyclinic.deploy.site.settings import SiteSettings

    policy = Path(home).parent / "policy.toml"
    policy_file = str(policy) if policy.exists() else None
    settings = SiteSettings(name, data, home, policy_file, device, encoder, case_pattern, cache=cache_folder)
    return RequestHandler(settings, processes=1)  # Ray has its processes side by side, and must not be forked
