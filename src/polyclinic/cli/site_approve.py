"""``polyclinic site approve``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyclinic.cli.options import JsonOption, RecipeArgument, SetOption

if TYPE_CHECKING:
    from polyclinic.recipe import Recipe


def approve(
    recipe: RecipeArgument,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="The site's policy.toml, whose list of recipes gets it.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="The site's images, as for polyclinic site: sizes are those for them.")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="A method or an expression.")] = None,
    overrides: SetOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Show what a coordinator's recipe would do and let out here; then list it in the policy, if you agree.

    With a list of recipes in its policy, a site runs these and no others. With --json nothing is asked: the recipe is
    listed with --yes, and only shown without.
    """
    from polyclinic.core.errors import PolyclinicError
    from polyclinic.federation.site_policy import load_policy, refusal_of_plugins
    from polyclinic.recipe.files import load_recipe, require_federation
    from polyclinic.recipe.fingerprint import recipe_sha256

    before = load_policy(policy)
    loaded = _with_own_images(load_recipe(recipe, overrides or [], method=method), data)
    reason = refusal_of_plugins(before, loaded.plugins)
    if reason is not None:  # before anything is loaded: the file that names a plugin came from elsewhere
        raise PolyclinicError(f"{recipe}: {reason}.")
    require_federation(loaded, recipe)
    if not loaded.federation.startswith("demo:") and not Path(loaded.federation).is_dir():
        raise PolyclinicError(f"{loaded.federation}: no such folder here; give the site's own images with --data.")
    from polyclinic.preview.explain import explanation, print_explanation

    # The policy names those plugins.
    facts, sha256 = explanation(loaded, plugins=True), recipe_sha256(loaded)
    if json_output:
        approved = sha256 in before.recipes or (policy is not None and yes and _list_in(policy, sha256))
        typer.echo(json.dumps({"recipe": sha256, "approved": approved, "explanation": facts}, indent=2))
        return
    print_explanation(facts)
    protocol = f"{loaded.protocol.kind}, {loaded.training.rounds} rounds of {loaded.training.local_epochs} local epochs"
    typer.echo(f"\n{protocol}, split {list(loaded.data.split)}, seed {loaded.seed}.")
    if policy is None:
        typer.echo(f'To approve it, give --policy FILE, or write into the policy: recipes = ["{sha256}"]')
        return
    if sha256 in before.recipes:
        typer.echo(f"{policy}: this recipe is approved already.")
        return
    if not yes and not typer.confirm(f"Let this recipe run here, and list it in {policy}?"):
        typer.echo("Nothing was changed.")
        raise typer.Exit(1)
    _list_in(policy, sha256)
    count = len(load_policy(policy).recipes)
    listed = "this recipe and no other" if count == 1 else f"the {count} recipes that are listed and no others"
    typer.echo(f"Approved. From its next request on the site runs {listed}: {policy}")


def _list_in(policy: Path, sha256: str) -> bool:
    """Let the recipe run here."""
    from polyclinic.deploy.site.approvals import approve_recipe

    approve_recipe(policy, sha256)
    return True


def _with_own_images(recipe: Recipe, data: Path | None) -> Recipe:
    """The recipe on this site's images, as the site itself would take it; the fingerprint does not cover them."""
    from polyclinic.data.layouts import looks_like_site
    from polyclinic.recipe.changes import with_changes

    if data is None:
        return recipe
    folder, sites = data.resolve(), None
    if folder.is_dir() and looks_like_site(folder):
        folder, sites = folder.parent, (folder.name,)
    return with_changes(recipe, {"federation": str(folder), "data.sites": sites})
