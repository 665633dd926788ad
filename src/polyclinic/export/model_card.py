"""The model card: what the model is, what it learned from, how good it is where, what left the sites, how to run it.

Names of sites, classes and federations may hold anything: they are shown as text, never as Markdown or HTML.
"""

from __future__ import annotations

import csv
import html
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from polyclinic.core.version import VERSION
from polyclinic.core.wording import counted, printable_line, readable_bytes
from polyclinic.evaluation.metric_registry import known_metrics
from polyclinic.export.check import Check
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.folder import RunFolder


@dataclass(frozen=True)
class Chosen:
    """Which model of a run was exported: ``model`` is ``best`` or ``last``, ``round_number`` counts from 1."""

    part: str
    site: str | None
    model: str
    round_number: int


def plain(text: Any) -> str:
    """Text for a line or a cell of Markdown: nothing in it is a link, a tag, a heading or the end of a cell."""
    escaped = re.sub(r"([\\`*_\[\]|~$:@])", r"\\\1", html.escape(printable_line(str(text)), quote=False))
    return re.sub(r"(?i)(www)\.", r"\1\\.", escaped)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A table in Markdown; cells must be plain already."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *([str(cell) for cell in row] for row in rows))]
    return [lines[0], "|" + "---|" * len(head), *lines[1:], ""]


def model_card(
    workspace: Workspace, folder: RunFolder, chosen: Chosen, settings: dict[str, Any], check: Check, usage: list[str]
) -> str:
    """The card in Markdown, without front matter; ``usage`` are the lines of "How to run it"."""
    summary = folder.summary() or {}
    task = f"segmentation of {', '.join(plain(name) for name in workspace.task.classes[1:])}"
    lines = [f"# Model card: {task}", "", *_about(workspace, chosen, summary), ""]
    sections = {
        "How to run it": usage,
        "Data": _data(workspace, folder, chosen, summary),
        "Method": _method(workspace),
        "Results by site": _results(summary, _owner(workspace, chosen)),
        "What left the sites": _left(workspace, summary),
        "Training": _training(workspace),
        "Input and output": [*_in_and_out(settings), *_scaling(settings, chosen)],
        # Without the names of images: they may be those of patients, and a card is made to be shown.
        "Check of this export": [check.sentence().capitalize() + ".", ""],
        "Intended use": _INTENDED,
        "Limits": _limits(workspace, chosen, summary),
        "Licence": ["To be filled in by those who own the data and the model: `licence: ...`", ""],
    }
    for title, content in sections.items():
        lines += [f"## {title}", "", *content]
    return "\n".join(lines).rstrip() + "\n"


_INTENDED = [
    "Research on federated segmentation. This is not a medical device: nobody has tested it for diagnosis, treatment",
    "or triage, and masks must not reach a patient's record without an expert who has looked at them.",
    "",
]


def _about(workspace: Workspace, chosen: Chosen, summary: dict[str, Any]) -> list[str]:
    site = _owner(workspace, chosen)
    whose = "the global model" if site is None else f"the model of the site {plain(site)}"
    part = "" if chosen.part == "all" else f", training {plain(chosen.part)}"
    return [
        f"A {workspace.task.spatial_dims}D network trained by federated learning with "
        f"{plain(workspace.recipe.method)}: {whose} after round {chosen.round_number} ({chosen.model}){part}. "
        f"Exported by polyclinic {VERSION}." + ("" if summary else " The run was not finished when this was exported.")
    ]


def _owner(workspace: Workspace, chosen: Chosen) -> str | None:
    """The site whose model it is; without kept weights all sites have the global one, whichever was asked for."""
    return chosen.site if workspace.kept else None


def _data(workspace: Workspace, folder: RunFolder, chosen: Chosen, summary: dict[str, Any]) -> list[str]:
    task = workspace.task
    name = plain(summary.get("federation", "not named"))
    lines = [f"Federation: {name}. Modality: {plain(task.modality) or 'not named'}.", ""]
    counts = split_counts(folder, chosen.part)
    if not counts:
        return [*lines, "How many images each site has is known at the sites alone.", ""]
    rows = [(plain(site), *(count[kind] for kind in ("train", "val", "test"))) for site, count in counts.items()]
    return [*lines, *table(("site", "training", "validation", "test"), rows)]


def split_counts(folder: RunFolder, part: str) -> dict[str, Counter[str]]:
    """Images of each site by split, where the run's folder knows."""
    counts: dict[str, Counter[str]] = {}
    for path in (folder.path / f"split-{part}.csv", folder.path / "split.csv"):
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    counts.setdefault(row["site"], Counter())[row["split"]] += 1
            break
    return counts


def _method(workspace: Workspace) -> list[str]:
    method = workspace.method
    paper = f" {plain(method.paper)}." if method.paper else ""
    rows = [(f"`{c.name}`", c.level, plain(c.paper) if c.paper else "") for c in workspace.components]
    return [f"{plain(method.summary)}{paper}".strip(), "", *table(("component", "level", "paper"), rows)]


def _results(summary: dict[str, Any], owner: str | None) -> list[str]:
    sites = summary.get("sites") or {}
    if not sites:
        return ["The run has no table of results yet.", ""]
    metrics = [name for name in known_metrics() if name in summary.get("average", {})] or list(summary["average"])
    rows = [
        (label, *(_number(values.get(metric), metric) for metric in metrics))
        for label, values in [*((plain(s), v) for s, v in sites.items()), ("**average**", summary["average"])]
    ]
    notes = [
        f"Overlaps in %, distances in {summary.get('distances', 'pixels')}, on test images that no site trained on."
    ]
    if owner is not None:
        notes.append("Each row is the site's own model on its own images: the row of this model is its site's.")
    if len(summary.get("tested_rounds", {})) > 1:
        notes.append("The run has several trainings; the table is over all of them.")
    return [*table(("site", *metrics), rows), " ".join(notes), ""]


def _number(value: Any, metric: str) -> str:
    if not isinstance(value, int | float):
        return "-"
    entry = known_metrics().get(metric)
    return f"{100 * value:.2f}" if entry is not None and entry.unit == "percent" else f"{value:.2f}"


def _left(workspace: Workspace, summary: dict[str, Any]) -> list[str]:
    if workspace.method.pooled:
        return ["Everything: this method puts all images in one place, as a reference.", ""]
    weights = f"{len(workspace.exchanged)} weight tensors of the network in every round" if workspace.exchanged else ""
    rows = [("network", weights)] if weights else []
    for component, declared in workspace.declared().items():
        rows += [(f"`{component}`", plain(f"{one.name}: {one.what}")) for one in declared]
    lines = table(("from", "what"), rows) if rows else ["Nothing.", ""]
    if workspace.kept:
        lines += [f"{counted(len(workspace.kept), 'weight tensor')} never left a site.", ""]
    if "bytes_up" in summary:
        pictures = any(one.pictures_of for declared in workspace.declared().values() for one in declared)
        images = "" if pictures else " No image did."
        lines += [f"{readable_bytes(summary['bytes_up'])} left the sites in all rounds together.{images}", ""]
    if "privacy" in summary:
        lines += [f"Differential privacy: {plain(summary['privacy'])}", ""]
    return lines


def _training(workspace: Workspace) -> list[str]:
    recipe = workspace.recipe
    chosen = {"seed": recipe.seed, "protocol": recipe.protocol.kind}
    for section, model in (("network", recipe.network), ("training", recipe.training)):
        chosen |= {f"{section}.{key}": value for key, value in model.model_dump().items() if key != "weights"}
    return table(
        ("setting", "value"), [(f"`{key}`", plain(value)) for key, value in chosen.items() if value is not None]
    )


def _in_and_out(settings: dict[str, Any]) -> list[str]:
    inference = settings["inference"]
    rows = [
        ("classes", ", ".join(f"{number} {plain(name)}" for number, name in enumerate(settings["classes"]))),
        ("regions", ", ".join(f"{plain(name)} = {classes}" for name, classes in settings["regions"].items()) or "-"),
        ("channels of an image", settings["image_channels"]),
        (
            "axes",
            f"{settings['spatial_dims']}D" + (", volumes slice by slice" if settings["volumes_as_slices"] else ""),
        ),
        *((name, plain(value)) for name, value in _used(settings).items()),
        ("window", plain(inference["patch"] or "the whole image")),
        ("overlap of windows", inference["overlap"]),
        ("sizes are padded to multiples of", plain(inference["multiples"])),
    ]
    fixed = inference["fixed_size"]
    return table(("", ""), [*rows, ("sizes of the network", plain(fixed) if fixed else "any")])


def _scaling(settings: dict[str, Any], chosen: Chosen) -> list[str]:
    """Whose mean and deviation images are scaled by, where a site's are taken."""
    steps = settings["preprocessing"]
    if steps["intensity"] != "site":
        return []
    if steps["site_intensity"] is None:
        text = (
            "Intensities are scaled by the mean and deviation of all images that are segmented together, as if they "
            "were all of one site: give images of one site at a time, and many of them; with other images beside it an "
            "image has another mask."
        )
    else:
        text = (
            f"Intensities are scaled by the mean and deviation of the training images of {plain(chosen.site)}; these "
            "numbers are in the files. Images of other scanners may need others."
        )
    return [text, ""]


def _used(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of the preprocessing that change anything."""
    steps = settings["preprocessing"]
    without = {
        "percentiles": steps["intensity"] != "percentile",
        "nonzero": steps["intensity"] not in ("z-score", "site"),
        "intensity_statistics": steps["intensity"] != "site",
        "fit": steps["size"] is None,
        "orientation": settings["spatial_dims"] == 2 and not settings["volumes_as_slices"],
    }
    used = {name: value for name, value in steps.items() if value is not None and not without.get(name)}
    site = used.pop("site_intensity", {})
    return {**used, **site}


def _limits(workspace: Workspace, chosen: Chosen, summary: dict[str, Any]) -> list[str]:
    sites = summary.get("sites") or {}
    worst = min(sites, key=lambda site: sites[site].get("dice") or 0, default=None)
    lines = [
        "- It knows the scanners, stains and patients of these sites and no others; test it on your own images first.",
        "- It always gives a mask, for images of other organs and modalities too.",
        "- Weights can hold traces of the images they were trained on: ask those who own the data before you publish.",
    ]
    if worst is not None and len(sites) > 1 and sites[worst].get("dice") is not None:
        lines.append(f"- Sites differ: the worst Dice is {100 * sites[worst]['dice']:.1f} %, at {plain(worst)}.")
    if (site := _owner(workspace, chosen)) is not None:
        lines.append(f"- It is the model of {plain(site)}, made for that site's images.")
    if workspace.network.frozen():
        name = plain(getattr(workspace.recipe.network, "model", "its encoder"))
        lines.append(f"- The frozen encoder ({name}) is part of the files, under the licence of those who trained it.")
    if workspace.recipe.training.rounds < 5:
        lines.append(f"- It was trained for {counted(workspace.recipe.training.rounds, 'round')} only.")
    return [*lines, ""]
