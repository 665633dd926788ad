"""What left each site: declared before the run, and measured in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import counted, readable_bytes
from polyclinic.report.page.results import Grid, RunRecord
from polyclinic.report.page.score_tables import Cell, SortableTable

Declared = Callable[[Path], Mapping[str, Any]]
"""What a run's components declare, as ``runs/what_leaves.py`` gives it."""


@dataclass(frozen=True)
class MethodRows:
    """One method; a row is what, bytes from a site in a round, tensors, declared as."""

    index: int
    method: str
    rows: list[list[str]]


@dataclass(frozen=True)
class Exchange:
    """What left by method and component; ``remarks`` are sentences about single methods; ``by_site`` is a whole run."""

    sentence: str
    by_component: list[MethodRows]
    remarks: list[str]
    by_site: SortableTable


def exchange_of(grid: Grid, declared: Declared | None) -> Exchange | None:
    """From the record of the runs, and what ``declared`` says where it is given; nothing before the first round."""
    started = [method for method in grid.methods if any(run.events for run in grid.of(method))]
    if not started:
        return None
    methods, remarks = list[MethodRows](), list[str]()
    for method in started:
        rows, words = _method(grid, method, declared)
        methods += [MethodRows(grid.methods.index(method), method, rows)] if rows else []
        remarks += [f"{method}: {words}"] if words else []
    pooled = [m for m in started if any((r.summary or {}).get("images_leave") for r in grid.of(m))]
    sentence = (
        f"Images and labels never left a site, but for {', '.join(pooled)}: a reference that pools all of them."
        if pooled
        else "Images and labels never left a site. What did is listed by component, as declared and as measured."
    )
    return Exchange(sentence, methods, remarks, _by_site(grid, started))


def _method(grid: Grid, method: str, declared: Declared | None) -> tuple[list[list[str]], str]:
    """The rows of a method, and a remark about it."""
    runs = [run for run in grid.of(method) if run.events]
    facts, problem = _declared(runs[0], declared)
    measured = _measured(runs)
    total = measured.pop("", 0.0)
    rows = []
    if total:
        count = str(facts.get("weights", {}).get("tensors", ""))
        size = readable_bytes(total - sum(measured.values()))
        rows.append(["trained weights", size, count, "weights of the network"])
    for component, size_of_all in measured.items():
        tensors = [row for row in facts.get("shared", []) if row["component"] == component]
        words = "; ".join(f"{row['tensor']} {_shape(row['shape'])}: {row['what']}" for row in tensors)
        rows.append([component, readable_bytes(size_of_all), str(len(tensors) or ""), words])
    return rows, _words(facts, problem, total)


def _words(facts: Mapping[str, Any], problem: str, total: float) -> str:
    if facts.get("images_leave"):
        return "Every image and label was pooled in one place: this is a reference, not a federated method."
    lines = []
    if not total:
        lines.append("Nothing crossed a boundary.")
    if kept := facts.get("kept", {}).get("tensors"):
        lines.append(f"{counted(kept, 'weight tensor')} ({readable_bytes(facts['kept']['bytes'])}) stay at each site.")
    pictures = {row["component"]: row["pictures_of"] for row in facts.get("shared", []) if row.get("pictures_of")}
    for component, cases in pictures.items():
        lines.append(f"{component} sends means of {cases} images, in which a patient may be seen.")
    if problem:
        lines.append(f"What was declared cannot be listed here: {problem}")
    return " ".join(lines)


def _declared(run: RunRecord, declared: Declared | None) -> tuple[Mapping[str, Any], str]:
    if declared is None:
        return {}, ""
    try:
        return declared(run.folder), ""
    except PolyclinicError as error:
        return {}, str(error)


def _measured(runs: list[RunRecord]) -> dict[str, float]:
    """Bytes from a site in a round, by component; the empty name is all of it."""
    total: list[float] = []
    shared: dict[str, list[float]] = {}
    for run in runs:
        for event in run.events:
            total += map(float, event["bytes_up"].values())
            for component, sites in event.get("shared_up", {}).items():
                shared.setdefault(component, []).extend(float(amount["bytes"]) for amount in sites.values())
    return {"": mean(total) if total else 0.0, **{name: mean(values) for name, values in shared.items() if values}}


def _by_site(grid: Grid, methods: list[str]) -> SortableTable:
    """Bytes of each site in a whole run, as a mean over runs: up, and under it down."""
    sites = dict.fromkeys(site for run in grid.runs for event in run.events for site in event["bytes_up"])
    rows = [[Cell(method), *(_site_cell(grid, method, site) for site in sites)] for method in methods]
    caption = (
        "Bytes in all rounds of a run, mean over seeds: up from the site to the server, and under it down to the site."
    )
    return SortableTable(caption, ["method", *sites], rows, [grid.methods.index(method) for method in methods])


def _site_cell(grid: Grid, method: str, site: str) -> Cell:
    runs = [run for run in grid.of(method) if run.events]
    up, down = (
        mean(sum(e[way].get(site, 0) for e in run.events) for run in runs) for way in ("bytes_up", "bytes_down")
    )
    return Cell(f"{readable_bytes(up)} up", up, note=f"{readable_bytes(down)} down")


def _shape(shape: list[Any]) -> str:
    return f"({' x '.join(map(str, shape))})" if shape else "(1 number)"
