"""The guard against foreign code: a site serves runs of polyclinic, and says so in its log when it is asked for others.

Flower sends every run as a bundle of files, and a SuperNode would start the program that the run's type names with
them. A site here never does: it has no part that could. This check is so that such a run is seen and refused by name.
"""

from __future__ import annotations

import io
import tomllib
import zipfile

from polyclinic.recipe.files import refuse_deep_keys

CLIENT = "polyclinic.deploy.site.client_app:app"
SERVER = "polyclinic.deploy.coordinator.server_app:app"
SERVED_TYPE = "flwr-serverapp"
"""The one type of Flower's tasks whose messages are answered: a server's program that speaks with sites."""
_ALLOWED = frozenset({"pyproject.toml", ".info/CONTENT"})
_LARGEST_FILE = 2**14  # bytes; polyclinic's own has 4000


def refusal_of_run(task_type: str, bundle: bytes) -> str | None:
    """Why a run may not be served here, or ``None``; any type that is not known to be right is refused."""
    if task_type != SERVED_TYPE:
        return f"the run is of the type {task_type[:100]!r}; this site serves {SERVED_TYPE} only, and starts no program"
    return refusal_of_bundle(bundle)


def refusal_of_bundle(bundle: bytes) -> str | None:
    """Why a run with this Flower app bundle may not be served, or ``None``."""
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            extra = sorted(set(archive.namelist()) - _ALLOWED)
            if extra:
                return (
                    f"the run brings files of its own ({', '.join(extra[:3])[:200]}); this machine runs polyclinic only"
                )
            with archive.open("pyproject.toml") as file:
                text = file.read(_LARGEST_FILE + 1)
            if len(text) > _LARGEST_FILE:
                return "the run's pyproject.toml is too large"
            refuse_deep_keys(text.decode(), "pyproject.toml")
            components = tomllib.loads(text.decode())["tool"]["flwr"]["app"]["components"]
    except Exception as error:  # zipfile raises many kinds of errors for hostile bytes
        return f"the run's bundle cannot be read ({type(error).__name__})"
    if components != {"serverapp": SERVER, "clientapp": CLIENT}:
        return "the run names another app than polyclinic's; this machine runs polyclinic only"
    return None
