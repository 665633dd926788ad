"""Scores of a trained part of a protocol: which model is tested at which site."""

from __future__ import annotations

from typing import Any, cast

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.sitedata import SiteData
from polyclinic.evaluation.aggregate import Row, for_json, summarise
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.exchange.messages import Broadcast, Failure, tensor_bytes
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import Workspace
from polyclinic.recipe import Recipe

Rows = list[Row]


def score_part(
    workspace: Workspace, server: Server, part: ProtocolPart, select: str, transfers: bool = True
) -> tuple[Rows, dict[str, Any]]:
    """Per-case rows, and plain facts about the test (the round of the tested model, transfer between sites).

    ``select`` is ``best`` or ``last``; without ``transfers`` nothing but the test images is scored.
    """
    engine, sites = server.engine, list(part.train_sites)
    weights, unseen_weights, number = server.checkpoint.load_model(select)
    best = number if select == "best" and server.state.best_round is not None else None
    chosen = Broadcast(server.state.round - 1, weights, best_round=best)
    tested = [part.unseen] if part.unseen else sites
    down = 0 if workspace.method.pooled else len(tested) * tensor_bytes(weights)
    facts: dict[str, Any] = {"tested_round": number, "rounds": server.state.round, "bytes_down": down}
    if part.unseen is None:
        rows = _evaluate(engine, chosen, sites, facts=facts)
    elif not workspace.kept or workspace.kept <= unseen_weights.keys():
        for_unseen = Broadcast(chosen.round, {**weights, **unseen_weights})
        rows = _evaluate(engine, for_unseen, [part.unseen], facts=facts)
    else:
        # Personal models and no rule for strangers: the mean over the training sites' models, as FedSemiDG reports.
        rows = _each_model(engine, chosen, server.sites, [part.unseen])
    if transfers and workspace.recipe.protocol.transfer and part.unseen is None:
        facts["transfer"] = _transfer(engine, chosen, server.sites, sites)
    if transfers and workspace.recipe.evaluation.training_images:
        facts["training_dice"] = _training_dice(engine, chosen, sites)
    return rows, facts


def check_test_data(data: SiteData, recipe: Recipe, observer: Observer) -> None:
    """Before the training: say which site cannot be tested, and stop when distances cannot be in millimetres."""
    if not len(data.labelled_indices("test")):
        observer.on_message(f"warning: {data.site} has no labelled test image, so it is not in the table")
    require_spacing(data, recipe)


def require_spacing(data: SiteData, recipe: Recipe) -> None:
    """Distances in pixels must not stand among those in millimetres."""
    if recipe.evaluation.units == "mm" and any(sample.spacing is None for sample in data.images.samples):
        raise PolyclinicError(
            f"evaluation.units = 'mm': images of site '{data.site}' do not know their spacing; "
            "write 'spacing' in federation.toml, or set evaluation.units to 'auto'."
        )


def _evaluate(
    engine: Engine, broadcast: Broadcast, sites: list[str], model: str = "", facts: dict[str, Any] | None = None
) -> Rows:
    """The rows of all sites. What a site gives instead of rows, and why one gives nothing, go into ``facts``."""
    rows: Rows = []
    for answer in engine.evaluate(broadcast, sites, "test", detailed=True):
        if isinstance(answer, Failure):
            if not engine.partial or facts is None:
                raise PolyclinicError(
                    f"Site '{answer.site}' could not be tested ({answer.reason}); mend it and go on with --resume."
                )
            facts.setdefault("untested", {})[answer.site] = answer.reason
            continue
        rows += [cast(Row, {**row, "model": model}) for row in answer.rows]
        if answer.stats and facts is not None:
            facts.setdefault("stats", {})[answer.site] = {k: for_json(v) for k, v in answer.stats.items()}
        if answer.note and facts is not None:
            facts.setdefault("untested", {})[answer.site] = answer.note
    return rows


def _each_model(engine: Engine, chosen: Broadcast, sources: tuple[str, ...], targets: list[str]) -> Rows:
    """The rows of every source site's model at the target sites."""
    return [
        row
        for source in sources
        for row in _evaluate(engine, Broadcast(chosen.round, engine.model(chosen, source)), targets, source)
    ]


def _training_dice(engine: Engine, chosen: Broadcast, sites: list[str]) -> dict[str, float | None]:
    """Mean Dice on each site's own labelled training images; no site without any."""
    answers = engine.evaluate(chosen, sites, "train", detailed=False)
    scored = [answer for answer in answers if not isinstance(answer, Failure) and answer.images]
    return for_json({answer.site: answer.dice for answer in scored})


def _transfer(engine: Engine, chosen: Broadcast, sources: tuple[str, ...], sites: list[str]) -> dict[str, Any]:
    """Dice of each site's model at each site: ``transfer[model][tested at]``."""
    return {
        source: {
            site: for_json(metrics).get("dice")
            for site, metrics in summarise(_each_model(engine, chosen, (source,), sites))[0].items()
        }
        for source in sources
    }
