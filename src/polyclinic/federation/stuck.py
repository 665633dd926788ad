"""A run, or a site of it, that finds nothing: how the server notices it, and what it says.

A network whose last features of the foreground are all switched off by ReLU predicts background everywhere, and may do
so for many rounds: only the classifier's bias can still move, slowly (``network.last_activation``). Each site says with
its validation Dice whether any pixel was predicted as foreground. Dice alone would not tell, since a slice without any
structure counts as 1 where nothing is predicted (``policies.empty_masks``), and in a 2D task on volumes many slices are
like that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from polyclinic.core.wording import counted, printable_line
from polyclinic.recipe import Recipe

if TYPE_CHECKING:
    from polyclinic.federation.checkpoint import ServerState
    from polyclinic.federation.workspace import Workspace

NEARLY_NOTHING = 0.01
"""A Dice below this is as good as none."""
PAGE = "docs/explanation/training.md"


_FEW = 6


def finds_nothing(scores: Mapping[str, float], background_only: Collection[str]) -> bool:
    """Whether no site got any use of a round's model: background alone, or a Dice next to 0, wherever there is one."""
    return bool(scores) and all(site in background_only or dice < NEARLY_NOTHING for site, dice in scores.items())


def rounds_of_nothing(
    before: Mapping[str, int], scores: Mapping[str, float], background_only: Collection[str], trained: Collection[str]
) -> dict[str, int]:
    """By site, the validated rounds in a row in which it found nothing while others found something.

    ``before`` is what this gave for the round before. A site that gave no score is not judged: its count stays. Nor is
    one that has never ``trained``, because what it has of its own is still as it was drawn. Background alone with a
    Dice of 1 is right: the site's validation images have no structure.
    """
    if finds_nothing(scores, background_only):
        return {}
    counts = {site: count for site, count in before.items() if site not in scores}
    for site, dice in scores.items():
        missed = (site in background_only and dice < 1) or dice < NEARLY_NOTHING
        if missed and site in trained:
            counts[site] = before.get(site, 0) + 1
    return dict(sorted(counts.items()))


def note_findings(
    state: ServerState, scores: Mapping[str, float], background_only: Collection[str], workspace: Workspace
) -> list[str]:
    """Count in the state what a validated round found, and say each time that nothing was found for too long."""
    limit, before = workspace.recipe.training.stuck_after, state.found_nothing_at
    state.found_nothing = state.found_nothing + 1 if finds_nothing(scores, background_only) else 0
    state.found_nothing_at = rounds_of_nothing(before, scores, background_only, state.norms)
    warnings = []
    if limit and state.found_nothing and state.found_nothing % limit == 0:
        warnings.append(stuck_warning(workspace.recipe, state.found_nothing))
    sites = {
        site: count
        for site, count in stuck_sites(state, limit).items()
        if count % limit == 0 and count != before.get(site)  # not again where a site gave no score
    }
    if sites:
        own = bool(workspace.kept - workspace.network.buffer_names())
        warnings.append(stuck_sites_warning(workspace.recipe, sites, own))
    return warnings


def stuck_rounds(state: ServerState, limit: int) -> int:
    """Validated rounds in a row that found nothing at any site, from ``limit`` on; 0 before, and without a limit."""
    return state.found_nothing if limit and state.found_nothing >= limit else 0


def stuck_sites(state: ServerState, limit: int) -> dict[str, int]:
    """The same by site, for those that found nothing while others found something."""
    return {site: count for site, count in state.found_nothing_at.items() if limit and count >= limit}


def stuck_warning(recipe: Recipe, rounds: int) -> str:
    """What a run says of itself that has found nothing in so many validated rounds, with what can still be tried."""
    return (
        f"the model has found nothing in the last {rounds} validated rounds (background only, or a Dice below "
        f"{NEARLY_NOTHING:g}, at every site); try {_training_tries(recipe)}; see {PAGE}"
    )


def stuck_sites_warning(recipe: Recipe, rounds: Mapping[str, int], own_weights: bool) -> str:
    """The same of sites, each with its rounds; ``own_weights`` says whether each site has weights that stay there."""
    where = [f"{printable_line(site)} (last {counted(count, 'validated round')})" for site, count in rounds.items()]
    nothing = f"nothing was found at {_listed(where, 'and')}: background only, or a Dice below {NEARLY_NOTHING:g}"
    if own_weights:
        why = f"with {recipe.method} each site has weights of its own, and training is stuck there"
        tries = _training_tries(recipe)
    else:
        why = "the model is the same at every site, so images or labels there are unlike the others'"
        options = ["a look at both (polyclinic data check says how far apart sites look)"]
        if recipe.data.intensity != "site":
            options.append('data.intensity = "site"')
        tries = _listed([*options, "a method that keeps weights at the sites, such as fedbn"], "or")
    return f"{nothing}, while other sites found something; {why}; try {tries}; see {PAGE}"


def stuck_briefly(everywhere: object, sites: Collection[str]) -> str:
    """What is stuck, in a few words for a line about a run; empty where nothing is."""
    if everywhere:
        return "stuck at background"
    names = ", ".join(map(printable_line, sites)) if len(sites) <= _FEW else f"{len(sites)} sites"
    return f"stuck at background at {names}" if sites else ""


def _training_tries(recipe: Recipe) -> str:
    """What can still be changed about the training."""
    network, training, data = recipe.network, recipe.training, recipe.data
    tries = [f"another, mostly lower, learning rate (training.lr is {training.lr:g})"]
    if data.patch is None:
        tries.append("patches with foreground (data.patch, data.foreground)")
    elif data.foreground < 0.5:
        tries.append(f"more patches with foreground (data.foreground = {data.foreground:g})")
    if getattr(network, "last_activation", None) == "same":
        tries.append('network.last_activation = "leaky-relu"')
    if training.loss != "ce" and training.dice_classes == "all":
        tries.append('training.dice_classes = "foreground"')
    return _listed(tries, "or")


def _listed(words: list[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0]
