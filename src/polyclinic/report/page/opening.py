"""The question and the answer, in words: what was compared, on what, how it was judged, and what is shown."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyclinic.core.wording import counted
from polyclinic.evaluation.metric_registry import known_metrics
from polyclinic.report.page.results import Grid, Results, RunRecord
from polyclinic.report.statistics import GridStatistics
from polyclinic.report.tables import metric_scale, metric_unit, value_text

_FEW = 5  # methods that a sentence names
_PROTOCOLS = {
    "own-test": "every site trains, and is tested on test images of its own",
    "leave-one-site-out": "each site in turn takes no part in training and is tested",
    "k-fold": "{folds}-fold cross-validation inside of every site",
    "repeated-splits": "{repeats} trainings, each on a split of its own, drawn anew",
}


def question(results: Results) -> str:
    """What the report answers."""
    grid, federation = results.grids[0], federation_name(results.first)
    if results.kind == "run":
        return f"How well does {grid.methods[0]} segment {federation}?"
    if results.kind == "study":
        keys = [str(key) for key in results.plan.get("axes") or [results.plan.get("key")]]
        return f"What {'does' if len(keys) == 1 else 'do'} {' and '.join(keys)} change on {federation}?"
    if results.kind == "ablation":
        of = results.plan.get("method")
        return f"What does each component of {of or 'the method'} bring on {federation}?"
    return f"Which method segments {federation} best?"


def answer(grid: Grid, metric: str) -> str:
    """The first sentence of the answer: the best average, or the average of the one run."""
    table = grid.comparison(metric)
    means = {method: value for method in grid.methods if (value := table.mean(method, "average")) is not None}
    if not means:
        return "There is no result yet."
    name, unit = metric_name(metric), _unit(metric, grid)
    if len(grid.methods) == 1:
        (method,) = means
        seeds = f", the mean over {counted(len(grid.seeds), 'seed')}" if len(grid.seeds) > 1 else ""
        shown = value_text(means[method], None, metric)
        return f"{method} reaches an average {name} of {shown}{unit} over {counted(len(grid.sites), 'site')}{seeds}."
    best = best_method(means, metric)
    direction = "lowest" if _lower(metric) else "highest"
    shown = value_text(means[best], table.deviation(best, "average"), metric).replace(" ", "\u00a0")
    return f"{best} has the {direction} average {name} over the sites: {shown}{unit}."


def conclusion(statistics: GridStatistics | None) -> str:
    """What the tests show, in a sentence: a higher mean alone shows nothing."""
    if statistics is None or not statistics.methods:
        return ""
    found = {v: [m for m, one in statistics.methods.items() if one.verdict == v] for v in ("better", "worse")}
    lines = [
        f"Shown to be {verdict} than {statistics.reference}: "
        f"{', '.join(methods) if len(methods) <= _FEW else counted(len(methods), 'method')}."
        for verdict, methods in found.items()
        if methods
    ]
    return " ".join(lines) or f"No method is shown to be better or worse than {statistics.reference}."


def verdicts(statistics: GridStatistics | None) -> list[dict[str, str]]:
    """One line a method: what is shown against the reference, and what is not."""
    if statistics is None:
        return []
    tones = {"better": "good", "worse": "bad"}
    return [
        {"tone": tones.get(one.verdict, "doubt"), "verdict": one.verdict, "sentence": one.sentence}
        for one in statistics.methods.values()
    ]


def facts(results: Results, metric: str) -> list[tuple[str, str]]:
    """Names and values of what was done, for the list under the answer."""
    grid, run = results.grids[0], results.first
    recipe = run.recipe
    found = [("federation", federation_name(run)), ("sites", _sites(grid))]
    images = image_counts(run.folder)
    if images:
        total = sum(sum(splits.values()) for splits in images.values())
        found.append(("images", f"{total} ({_by_split(images)})"))
    task = run.table("task.json")
    if classes := task.get("classes"):
        dimensions = f", {task.get('spatial_dims', 2)}D" if "spatial_dims" in task else ""
        found.append(("classes", f"{', '.join(map(str, classes))}{dimensions}"))
    protocol = recipe.get("protocol", {})
    kind = str(protocol.get("kind", "own-test"))
    words = _PROTOCOLS.get(kind, kind).format(folds=protocol.get("folds", 5), repeats=protocol.get("repeats", 3))
    found.append(("judged by", f"{metric_name(metric)}; {words}"))
    training = recipe.get("training", {})
    epochs = training.get("local_epochs", 1)
    rounds = counted(int(training.get("rounds", 0)), "round")
    found.append(("training", f"{rounds}, {counted(int(epochs), 'local epoch')} each"))
    found.append(("network", str(recipe.get("network", {}).get("name", "unet"))))
    found.append(("seeds", ", ".join(map(str, grid.seeds))))
    return found


def missing_words(grids: Sequence[Grid]) -> str:
    """A sentence when runs have no result yet."""
    runs = [(grid, run) for grid in grids for run in grid.runs if run.summary is None]
    if not runs:
        return ""
    names = [f"{grid.title + ' ' if grid.title else ''}{run.method} seed {run.seed}" for grid, run in runs]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"Not finished, so not in any number here: {', '.join(names[:6])}{more}."


def metric_name(metric: str) -> str:
    """A metric as people write it.

    >>> metric_name("dice"), metric_name("hd95"), metric_name("dice/nucleus")
    ('Dice', 'HD95', 'Dice of nucleus')
    """
    known = {"dice": "Dice", "iou": "IoU", "hd95": "HD95", "asd": "ASD", "assd": "ASSD"}
    base, _, only = metric.partition("/")
    return f"{known.get(base, base)}{f' of {only}' if only else ''}"


def best_method(means: dict[str, float], metric: str) -> str:
    """The method with the best mean; of equal ones the first."""
    return (min if _lower(metric) else max)(means, key=means.__getitem__)


def federation_name(run: RunRecord) -> str:
    """The federation's own name, or else the last part of its path."""
    named: Any = (run.summary or {}).get("federation") or run.table("live.json").get("federation")
    return str(named or Path(str(run.recipe.get("federation", "the federation"))).name)


def image_counts(folder: Path) -> dict[str, Counter[str]]:
    """``site -> split -> images``, from ``split.csv``; empty where the protocol has several, or none is there."""
    try:
        with (folder / "split.csv").open(encoding="utf-8", newline="") as file:
            rows = [(row["site"], row["split"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, UnicodeDecodeError, csv.Error):
        return {}
    counts: dict[str, Counter[str]] = {}
    for site, split in rows:
        counts.setdefault(site, Counter())[split] += 1
    return counts


def _by_split(images: dict[str, Counter[str]]) -> str:
    total: Counter[str] = sum(images.values(), Counter())
    names = {"train": "for training", "val": "for validation", "test": "for testing"}
    return ", ".join(f"{number} {names.get(split, split)}" for split, number in total.items())


def _sites(grid: Grid) -> str:
    shown = ", ".join(grid.sites[:8])
    return (
        f"{len(grid.sites)}: {shown}{' and others' if len(grid.sites) > 8 else ''}" if grid.sites else "not known yet"
    )


def _lower(metric: str) -> bool:
    entry = known_metrics().get(metric.split("/")[0])
    return entry is not None and entry.better == "lower"


def _unit(metric: str, grid: Grid) -> str:
    if metric_unit(metric) == "distance":
        return f"\u00a0{next(str((run.summary or {}).get('distances', 'pixels')) for run in grid.finished)}"
    return "\u00a0%" if metric_scale(metric) == 100 else ""
