"""A run that finds nothing: how the server notices it, and what it says.

A network whose last features of the foreground are all switched off by ReLU predicts background everywhere, and may do
so for many rounds: only the classifier's bias can still move, slowly (``network.last_activation``). Each site says with
its validation Dice whether any pixel was predicted as foreground. Dice alone would not tell, since a slice without any
structure counts as 1 where nothing is predicted (``policies.empty_masks``), and in a 2D task on volumes many slices are
like that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from polyclinic.recipe import Recipe

NEARLY_NOTHING = 0.01
"""A Dice below this is as good as none."""
PAGE = "docs/explanation/training.md"


def finds_nothing(scores: Mapping[str, float], background_only: Collection[str]) -> bool:
    """Whether no site got any use of a round's model: background alone, or a Dice next to 0, wherever there is one."""
    return bool(scores) and all(site in background_only or dice < NEARLY_NOTHING for site, dice in scores.items())


def stuck_warning(recipe: Recipe, rounds: int) -> str:
    """What a run says of itself that has found nothing in so many validated rounds, with what can still be tried."""
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
    advice = f"{', '.join(tries[:-1])} or {tries[-1]}" if len(tries) > 1 else tries[0]
    return (
        f"the model has found nothing in the last {rounds} validated rounds (background only, or a Dice below "
        f"{NEARLY_NOTHING:g}, at every site); try {advice}; see {PAGE}"
    )
