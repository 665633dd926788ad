"""A longer run: ``--resume`` with another ``training.rounds``, of a run that was interrupted or is finished."""

from __future__ import annotations

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text
from polyclinic.federation.checkpoint import Checkpoint, ServerState
from polyclinic.federation.workspace import Workspace, build_workspace
from polyclinic.recipe import Recipe
from polyclinic.recipe.changes import with_changes
from polyclinic.recipe.files import load_recipe, recipe_text
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.plan import RunPlan

_ROUNDS = "training.rounds"


def change_rounds(folder: RunFolder, plan: RunPlan) -> None:
    """Give a run that was started the number of rounds of a plan that is the same in everything else.

    It then ends bit for bit like a run that had this number from the start, or it is refused. What was tested after the
    old number of rounds goes, the recipe comes last: a kill in between leaves a run of the old length, to be tested.
    """
    if not folder.recipe_file.exists() or not folder.started() or folder.changes(plan.recipe) != [_ROUNDS]:
        return
    before = load_recipe(folder.recipe_file)
    _require_possible(folder, plan, before)
    folder.summary_file.unlink(missing_ok=True)
    folder.cases_file.unlink(missing_ok=True)
    for part in plan.parts:
        folder.tested_file(part.name).unlink(missing_ok=True)
        folder.part_cases_file(part.name).unlink(missing_ok=True)
    write_text(folder.recipe_file, recipe_text(with_changes(before, {_ROUNDS: plan.recipe.training.rounds})))


def _require_possible(folder: RunFolder, plan: RunPlan, before: Recipe) -> None:
    old, new = before.training.rounds, plan.recipe.training.rounds
    workspace = build_workspace(with_changes(plan.recipe, {_ROUNDS: old}), plan.task, plan.method)
    for part in plan.parts:
        state = Checkpoint(folder.part(part.name)).load()
        if state is None:
            continue
        problem = length_problem(workspace, state)
        if state.round > new:
            problem = f"{state.round} rounds are done"
        if problem is not None:
            raise PolyclinicError(
                f"{folder.path}: training.rounds = {old} cannot become {new}, because {problem}; resume with the same "
                "number, or start a new run in another folder with --out."
            )


def length_problem(workspace: Workspace, state: ServerState) -> str | None:
    """Why a run of this recipe, with the number of rounds that it has had so far, cannot get another, or ``None``."""
    training = workspace.recipe.training
    if training.schedule != "constant":
        return f"training.schedule = '{training.schedule}' spreads the learning rate over all rounds"
    for component in workspace.components:
        if component.depends_on_rounds:
            return f"what {component.name} does in a round depends on their number"
    if state.round == training.rounds and training.rounds % training.validate_every:
        return (
            f"the model of round {state.round} was validated because it was the last one, and "
            f"training.validate_every = {training.validate_every} would not have done so"
        )
    return None
