"""A quorum that no round can reach is refused where the number of sites is known before training."""

from __future__ import annotations

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import counted
from polyclinic.federation.server import count_of
from polyclinic.recipe import Recipe


def refuse_high_quorum(recipe: Recipe, sites: int) -> None:
    """Stop where ``training.quorum`` asks for more updates than a round of a federation of so many sites has.

    The server would take all for a quorum then, which is not what was asked for. A share never asks for more.
    """
    settings = recipe.training
    training = sites - 1 if recipe.protocol.kind == "leave-one-site-out" else sites
    chosen = count_of(settings.participation, training)
    if settings.quorum <= max(1, chosen):
        return
    why = "protocol.kind leaves one out" if training < sites else ""
    why = "training.participation" if chosen < training else why
    advice = f"at most {chosen}, or a share up to 1" if chosen > 1 else "a share up to 1"
    raise PolyclinicError(
        f"training.quorum = {settings.quorum:g}: a round has {counted(chosen, 'site')}{f' ({why})' if why else ''}, "
        f"so that the quorum could never be reached; give {advice}."
    )
