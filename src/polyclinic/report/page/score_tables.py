"""The tables of the page: cells as text, with the number that a column is sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyclinic.evaluation.metric_registry import known_metrics
from polyclinic.report.page.opening import metric_name
from polyclinic.report.page.results import Grid, Results, value_title
from polyclinic.report.statistics import GridStatistics
from polyclinic.report.study import StudyTable
from polyclinic.report.tables import Comparison, metric_scale, metric_unit, value_text


@dataclass(frozen=True)
class Cell:
    """``number`` is what the column is sorted by; ``rank`` is 1 for the best of a column and 2 for the second."""

    text: str
    number: float | None = None
    rank: int = 0
    note: str = ""


@dataclass(frozen=True)
class SortableTable:
    """A table with a name in the first cell of each row; ``swatches`` are the places of methods, for their colours."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    swatches: Sequence[int] = field(default_factory=list)


def score_table(grid: Grid, metric: str, statistics: GridStatistics | None) -> SortableTable:
    """Methods by sites, the average, the difference to the reference, its interval and p."""
    table = grid.comparison(metric)
    columns = {column: _column(table, column) for column in table.columns}
    header = ["method", *table.columns]
    compared = statistics is not None and len(grid.methods) > 1
    if compared:
        header += [f"difference to {grid.reference}", "95 % interval", "p (Holm)", "worst site"]
    rows = []
    for method in grid.methods:
        row = [Cell(method), *(columns[column][method] for column in table.columns)]
        rows.append([*row, *(_compared(method, statistics) if statistics and compared else [])])
    seeds = f"mean ± standard deviation over {len(grid.seeds)} seeds" if len(grid.seeds) > 1 else "one seed"
    unit = {"percent": " in %", "distance": f" in {distances(grid)}", "none": ""}[metric_unit(metric)]
    caption = f"{metric_name(metric)}{unit}, {seeds}. Best bold, second underlined."
    return SortableTable(caption, header, rows, list(range(len(grid.methods))))


def metric_table(grid: Grid) -> SortableTable:
    """The average over sites of every metric, a row a method."""
    tables = [grid.comparison(metric) for metric in grid.metrics]
    columns = [_column(table, "average") for table in tables]
    header = ["method", *(f"{metric_name(m)}{_short_unit(m, grid)}" for m in grid.metrics)]
    rows = [[Cell(method), *(column[method] for column in columns)] for method in grid.methods]
    return SortableTable("Average over sites of every metric.", header, rows, list(range(len(grid.methods))))


def run_table(grid: Grid) -> SortableTable:
    """One run: a row a site, a column a metric, the average last."""
    names = grid.metrics
    tables = {name: grid.comparison(name) for name in names}
    (method,) = grid.methods
    rows = []
    for column in (*grid.sites, "average"):
        values = [tables[name].mean(method, column) for name in names]
        cells = [
            Cell(value_text(value, None, name), _scaled(value, name)) for name, value in zip(names, values, strict=True)
        ]
        rows.append([Cell(column), *cells])
    header = ["site", *(f"{metric_name(name)}{_short_unit(name, grid)}" for name in names)]
    return SortableTable("Every metric at every site; the average counts each site once.", header, rows)


def study_table(results: Results, table: StudyTable) -> SortableTable:
    """Methods by values of the key: the average over sites."""
    methods = list(table.methods)
    rows = []
    for method in methods:
        cells = [Cell(method)]
        for value in table.values:
            mean = table.mean(method, value)
            spread = _deviation(table.deviation(method, value), table.metric)
            cells.append(Cell(value_text(mean, None, table.metric), _scaled(mean, table.metric), note=spread))
        rows.append(cells)
    header = ["method", *(value_title(results.plan, value) for value in table.values)]
    order = {method: number for number, method in enumerate(results.grids[0].methods)}
    return SortableTable(table.caption, header, rows, [order.get(method, 0) for method in methods])


def ablation_table(grid: Grid, plan: Mapping[str, Any], metric: str) -> SortableTable:
    """Which components each row keeps, its average, and how far that is from the row without any of them."""
    table, components = grid.comparison(metric), [str(name) for name in plan.get("components", ())]
    column, base = _column(table, "average"), table.mean(grid.reference, "average")
    rows, swatches = [], []
    for entry in plan["rows"]:
        method, kept = str(entry["method"]), set(map(str, entry.get("components", ())))
        if method not in grid.methods:
            continue
        own = table.mean(method, "average")
        apart = (
            Cell("")
            if own is None or base is None or method == grid.reference
            else _signed(_points(own - base, metric))
        )
        checks = [Cell("\u2713", 1.0) if name in kept else Cell("", 0.0) for name in components]
        rows.append([Cell(method), *checks, column[method], apart])
        swatches.append(grid.methods.index(method))
    header = ["method", *components, f"average {metric_name(metric)}", f"against {grid.reference}"]
    return SortableTable("What each row keeps of the method, and its average over sites.", header, rows, swatches)


def distances(grid: Grid) -> str:
    """The unit of distances: mm or pixels."""
    return next((str((run.summary or {}).get("distances", "pixels")) for run in grid.finished), "pixels")


def _column(table: Comparison, column: str) -> dict[str, Cell]:
    """The cells of a column by method, the best two marked; what reads the same has the same mark."""
    means = {method: table.mean(method, column) for method in table.methods}
    shown = {method: value_text(value, None, table.metric) for method, value in means.items() if value is not None}
    known = sorted(set(shown.values()), key=float, reverse=not _lower(table.metric))
    places = {text: place for place, text in enumerate(known, start=1)} if len(table.methods) > 1 else {}
    return {
        method: Cell(
            value_text(value, None, table.metric),
            _scaled(value, table.metric),
            places.get(shown.get(method, ""), 0),
            _deviation(table.deviation(method, column), table.metric),
        )
        for method, value in means.items()
    }


def _compared(method: str, statistics: GridStatistics) -> list[Cell]:
    """Difference, interval, p, and the worst site."""
    one, fair, scale = statistics.methods.get(method), statistics.fairness.get(method), statistics.scale
    worst = Cell("-") if fair is None else Cell(f"{fair.worst * scale:.2f}", fair.worst * scale, note=fair.worst_site)
    if one is None:
        return [Cell("reference" if method == statistics.reference else "-"), Cell(""), Cell(""), worst]
    difference = Cell("-") if one.difference is None else _signed(one.difference * scale)
    between, p = one.interval, one.p_wilcoxon_holm
    interval = (
        Cell("-")
        if between is None
        else Cell(f"{_minus(between.low * scale)} to {_minus(between.high * scale)}", between.low * scale)
    )
    return [difference, interval, Cell("-") if p is None else Cell("< 0.001" if p < 0.001 else f"{p:.3f}", p), worst]


def _deviation(value: float | None, metric: str) -> str:
    """A standard deviation, for the line under its mean."""
    return "" if value is None else f"± {value * metric_scale(metric):.2f}"


def _signed(value: float) -> Cell:
    return Cell(f"{value:+.2f}".replace("-", "\u2212"), value)


def _minus(value: float) -> str:
    return f"{value:.2f}".replace("-", "\u2212")


def _points(value: float, metric: str) -> float:
    return value * metric_scale(metric)


def _scaled(value: float | None, metric: str) -> float | None:
    return None if value is None else value * metric_scale(metric)


def _short_unit(metric: str, grid: Grid) -> str:
    return {"percent": ", %", "distance": f", {distances(grid)}", "none": ""}[metric_unit(metric)]


def _lower(metric: str) -> bool:
    entry = known_metrics().get(metric.split("/")[0])
    return entry is not None and entry.better == "lower"
