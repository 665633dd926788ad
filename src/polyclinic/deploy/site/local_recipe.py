"""The server's recipe with what the site decides: folder of the data, cases, cache, device, file of the encoder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.settings import SiteSettings


def with_local_settings(table: dict[str, Any], settings: SiteSettings, log: Callable[[str], object]) -> dict[str, Any]:
    """A recipe's table as this site runs it; ``log`` is told what of the server's is not used."""
    for key in ("data", "network", "engine"):
        if not isinstance(table.get(key, {}), dict):
            raise PolyclinicError(f"the server's recipe: {key} = {table[key]!r} is not possible: it is a table.")
    return {
        **table,
        "federation": settings.data,
        "data": _data(table.get("data", {}), settings, log),
        "network": _network(table.get("network", {}), settings),
        "engine": {**table.get("engine", {}), "device": settings.device or "auto"},
        "tracking": {},
    }


def _data(table: dict[str, Any], settings: SiteSettings, log: Callable[[str], object]) -> dict[str, Any]:
    data = {key: value for key, value in table.items() if key not in ("cache", "case_pattern")}
    data |= {"sites": [settings.name], "cache": settings.cache or str(Path(settings.home) / "cache")}
    if settings.cache is None:
        data.pop("cache_limit_mb", None)  # the policy says how large the home may be
    # A pattern of the server's would ask the names of patients questions, and change which images are one case.
    if settings.case_pattern is not None:
        data["case_pattern"] = settings.case_pattern
    if table.get("case_pattern") not in (None, settings.case_pattern):
        log(
            "data.case_pattern of the server's recipe is not used: cases are read in the names of images by this "
            "site's own rule; to change it, write case_pattern into federation.toml, or start with --case-pattern"
        )
    return data


def _network(table: dict[str, Any], settings: SiteSettings) -> dict[str, Any]:
    if "weights" not in table:
        return dict(table)
    weights = "random" if table["weights"] == "random" else settings.encoder
    if weights is None:
        raise PolyclinicError(
            "the recipe needs the file of a pretrained encoder, and the site gave none; start the site with "
            "--encoder FILE."
        )
    return {**table, "weights": weights}
