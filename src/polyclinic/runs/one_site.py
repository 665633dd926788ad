"""One site's part of one round, in a process that knows nothing but its own data, its own disk and a message.

This is what a real network needs of a site. ``python -m polyclinic.runs.one_site RECIPE SITE STATE BROADCAST UPDATE``
reads the broadcast from a file and writes the update to another; both hold named tensors only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from polyclinic.errors import PolyclinicError
from polyclinic.evaluation.protocols import whole_part
from polyclinic.federation.bench import build_bench
from polyclinic.federation.messages import Broadcast, Update, load_message, save_message
from polyclinic.federation.site import Site
from polyclinic.federation.store import SiteStore
from polyclinic.methods.expression import parse_method
from polyclinic.methods.registry import load_plugins
from polyclinic.recipe import Recipe
from polyclinic.recipe_files import load_recipe
from polyclinic.runs.sites import open_for, prepare_items, site_data


def answer(recipe: Recipe, site: str, state: Path, broadcast: Broadcast) -> Update:
    """Train one round at one site, whose memory lies in the folder ``state``."""
    load_plugins(recipe.plugins)
    federation, recipe = open_for(recipe)
    if site not in federation.sites:
        raise PolyclinicError(f"{federation.root}: has no site '{site}'; it has {', '.join(federation.sites)}.")
    part = whole_part(federation, recipe, parse_method(recipe.method).all_labels)
    data = site_data(site, prepare_items(federation, recipe, part.items(federation, site)), part)
    return Site(data, SiteStore(state)).train(build_bench(recipe, federation.task), broadcast)


def main(arguments: list[str]) -> None:
    """Entry point of the process."""
    try:
        if len(arguments) != 5:
            raise PolyclinicError(f"one_site takes RECIPE SITE STATE BROADCAST UPDATE, got {len(arguments)} arguments.")
        recipe, site, state, received, reply = arguments
        broadcast = load_message(Path(received))
        if not isinstance(broadcast, Broadcast):
            raise PolyclinicError(f"{received}: holds an update; give the file of the server's broadcast.")
        save_message(Path(reply), answer(load_recipe(recipe), site, Path(state), broadcast))
    except PolyclinicError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
