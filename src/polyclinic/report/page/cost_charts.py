"""Accuracy against what it costs: seconds and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from polyclinic.core.wording import MB, readable_bytes
from polyclinic.report.page.chart import Chart, Trace, axis, chart_text, finite, rounded
from polyclinic.report.page.colours import method_style
from polyclinic.report.page.opening import metric_name
from polyclinic.report.page.results import Grid
from polyclinic.report.page.score_tables import Cell, SortableTable
from polyclinic.report.tables import metric_scale, metric_unit, value_text


@dataclass(frozen=True)
class Cost:
    """What a run of a method costs, as a mean over its finished runs, with the scores of each."""

    index: int
    method: str
    seconds: float
    bytes_up: float
    bytes_down: float
    scores: Sequence[float]
    images_leave: bool


def costs_of(grid: Grid, metric: str) -> list[Cost]:
    """One entry for each method with a finished run."""
    costs = []
    for index, method in enumerate(grid.methods):
        summaries = [run.summary for run in grid.of(method) if run.summary is not None]
        if not summaries:
            continue
        scores = [value for s in summaries if (value := finite(s["average"].get(metric))) is not None]
        seconds, up, down = (mean(s[key] for s in summaries) for key in ("seconds", "bytes_up", "bytes_down"))
        pooled = any(s.get("images_leave") for s in summaries)
        costs.append(Cost(index, method, seconds, up, down, scores, pooled))
    return costs


def cost_charts(costs: Sequence[Cost], metric: str) -> list[Chart]:
    """The average against seconds, and against megabytes over the network."""
    scored = [cost for cost in costs if cost.scores]
    if not scored:
        return []
    name, unit = chart_text(metric_name(metric)), " in %" if metric_unit(metric) == "percent" else ""
    layout: dict[str, Any] = {"yaxis": axis(f"average {name}{unit}"), "hovermode": "closest"}
    seconds = [_point(cost, cost.seconds, metric) for cost in scored]
    moved = [cost for cost in scored if not cost.images_leave]
    megabytes = [_point(cost, (cost.bytes_up + cost.bytes_down) / MB, metric) for cost in moved]
    charts = [
        Chart(
            f"Average {metric} against seconds",
            "Seconds of a run: training, validation and test. Runs that went side by side slow each other down.",
            seconds,
            {**layout, "xaxis": axis("seconds of a run", rangemode="tozero")},
            300,
        )
    ]
    if megabytes:
        note = "Tensors that went up and down between the sites and the server in a whole run, in MB (10⁶ bytes)."
        pooled = [cost.method for cost in scored if cost.images_leave]
        note += f" Without {', '.join(pooled)}, which pools the images." if pooled else ""
        x = axis("MB up and down in a run", rangemode="tozero")
        charts.append(Chart(f"Average {metric} against bytes", note, megabytes, {**layout, "xaxis": x}, 300))
    return charts


def cost_table(costs: Sequence[Cost], metric: str) -> SortableTable:
    """The same as a table."""
    rows = [
        [
            Cell(cost.method),
            _score_cell(cost, metric),
            Cell(f"{cost.seconds:.1f}", cost.seconds),
            *(
                Cell("all images") if cost.images_leave else Cell(readable_bytes(n), n)
                for n in (cost.bytes_up, cost.bytes_down)
            ),
        ]
        for cost in costs
    ]
    caption = "One run, as a mean over seeds; up and down are all sites and rounds together."
    header = ["method", f"average {metric_name(metric)}", "seconds", "up", "down"]
    return SortableTable(caption, header, rows, [cost.index for cost in costs])


def _score_cell(cost: Cost, metric: str) -> Cell:
    value = mean(cost.scores) if cost.scores else None
    return Cell(value_text(value, None, metric), value)


def _point(cost: Cost, x: float, metric: str) -> Trace:
    colour, _, marker = method_style(cost.index)
    scale, middle = metric_scale(metric), mean(cost.scores)
    (above,) = rounded([(max(cost.scores) - middle) * scale])
    (below,) = rounded([(middle - min(cost.scores)) * scale])
    return {
        "type": "scatter", "mode": "markers", "name": chart_text(cost.method),
        "x": rounded([x]), "y": rounded([middle * scale]), "text": [chart_text(cost.method)],
        "meta": {"method": cost.index}, "showlegend": False, "cliponaxis": False,
        "marker": {"color": colour, "size": 10, "symbol": marker},
        "hovertemplate": "%{text}: %{y:.2f} at %{x:.4~g}<extra></extra>",
        "error_y": {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below], "thickness": 1.2,
                    "width": 4, "color": f"{colour}/0.6"},
    }  # fmt: skip
