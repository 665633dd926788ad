"""What a budget of labels hides at a federation: all of it, some, or nothing."""

from __future__ import annotations

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import counted
from polyclinic.evaluation.protocols import whole_part
from polyclinic.preview.round_flops import training_images
from polyclinic.runs.plan import RunPlan


def budget_note(plan: RunPlan, labelled: int) -> str | None:
    """A sentence where some sites have no more labels than the budget; an error where none has more."""
    part = whole_part(plan.federation, plan.recipe, all_labels=True)
    found = {site: images.labelled for site, images in training_images(plan.federation, plan.recipe, part).items()}
    fewest, most = min(found.values()), max(found.values())
    if most <= labelled:
        raise PolyclinicError(
            f"--labelled {labelled}: no site has more than {counted(most, 'labelled training image')} (the rest are "
            f"for validation and test), so that no label would be hidden; leave --labelled out, or give a number below "
            f"{most}."
        )
    if fewest > labelled:
        return None
    full = [site for site, number in found.items() if number <= labelled]
    return (
        f"{counted(len(full), 'site')} of {len(found)} ({', '.join(full)}) would keep all labels: the fewest that a "
        f"site has for training are {fewest}"
    )
