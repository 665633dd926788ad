"""A study as a chart: the average of each method over the values of the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from polyclinic.report.page.chart import Chart, axis, chart_text, rounded
from polyclinic.report.page.colours import method_style
from polyclinic.report.page.results import Results
from polyclinic.report.study import StudyTable
from polyclinic.report.tables import metric_scale, metric_unit


def study_chart(results: Results, table: StudyTable) -> Chart:
    """Lines over the values of one key, heat maps over those of two."""
    axes = {str(key): tuple(map(str, values)) for key, values in (results.plan.get("axes") or {}).items()}
    return _heat_maps(table, axes) if len(axes) == 2 else _lines(results, table)


def _heat_maps(table: StudyTable, axes: Mapping[str, Sequence[str]]) -> Chart:
    """A map a method, all with one scale of colours."""
    (down, rows), (across, columns) = axes.items()
    scale, count = metric_scale(table.metric), len(table.methods)
    layout: dict[str, Any] = {"grid": {"rows": 1, "columns": count, "pattern": "independent"}, "hovermode": "closest"}
    layout["coloraxis"] = {"colorscale": "Cividis", "colorbar": {"thickness": 12, "outlinewidth": 0}}
    data = []
    for number, method in enumerate(table.methods, start=1):
        end = "" if number == 1 else str(number)
        means = [[table.mean(method, f"{row}, {column}") for column in columns] for row in rows]
        data.append(
            {
                "type": "heatmap", "coloraxis": "coloraxis", "xaxis": f"x{end}", "yaxis": f"y{end}",
                "x": [chart_text(value) for value in columns], "y": [chart_text(value) for value in rows],
                "z": [rounded(None if mean is None else mean * scale for mean in line) for line in means],
                "texttemplate": "%{z:.1f}", "hovertemplate": "%{z:.2f}<extra></extra>", "xgap": 2, "ygap": 2,
            }
        )  # fmt: skip
        layout[f"xaxis{end}"] = axis(f"{chart_text(method)}: {chart_text(across)}", type="category", showgrid=False)
        layout[f"yaxis{end}"] = axis(chart_text(down) if number == 1 else "", type="category", showgrid=False)
    note = f"Average {table.metric} over sites, a map a method; all maps have one scale of colours."
    return Chart(f"Average {table.metric} by {table.key}", note, data, layout, 120 + 56 * len(rows))


def _lines(results: Results, table: StudyTable) -> Chart:
    """A line a method, with bars of one standard deviation where there are several seeds."""
    scale, data = metric_scale(table.metric), []
    order = {method: number for number, method in enumerate(results.grids[0].methods)}
    numbers = [_number(value) for value in table.values]
    numeric = all(number is not None for number in numbers)
    places = sorted(range(len(numbers)), key=lambda place: numbers[place] or 0.0) if numeric else range(len(numbers))
    for method in table.methods:
        colour, dash, marker = method_style(order.get(method, 0))
        values = [table.values[place] for place in places]
        means = [table.mean(method, value) for value in values]
        bars = [table.deviation(method, value) for value in values]
        data.append(
            {
                "type": "scatter", "mode": "lines+markers", "name": chart_text(method), "showlegend": False,
                "meta": {"method": order.get(method, 0)},
                "x": [numbers[place] if numeric else chart_text(table.values[place]) for place in places],
                "y": rounded(None if m is None else m * scale for m in means), "hovertemplate": "%{y:.2f}",
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"color": colour, "symbol": marker, "size": 7},
                "error_y": {"type": "data", "array": rounded(None if b is None else b * scale for b in bars),
                            "color": f"{colour}/0.6", "thickness": 1.2, "width": 4,
                            "visible": any(b is not None for b in bars)},
            }
        )  # fmt: skip
    known = [number for number in numbers if number is not None]
    x = axis(chart_text(table.key), **(_ticks(known) if numeric else {"type": "category"}))
    unit = " in %" if metric_unit(table.metric) == "percent" else ""
    layout = {"xaxis": x, "yaxis": axis(f"average {chart_text(table.metric)}{unit}"), "hovermode": "x unified"}
    return Chart(
        f"Average {table.metric} by {table.key}",
        "Average over sites; bars are one standard deviation over seeds, where there are several.",
        data, layout, 380,
    )  # fmt: skip


def _ticks(numbers: Sequence[float]) -> dict[str, Any]:
    """Marks at the values themselves, unless two are so near that their numbers would lie on each other."""
    ordered = sorted(set(numbers))
    gaps = [right - left for left, right in pairwise(ordered)]
    if not gaps or min(gaps) < (ordered[-1] - ordered[0]) / 10:
        return {}
    return {"tickvals": ordered, "ticktext": [f"{number:g}" for number in ordered]}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
