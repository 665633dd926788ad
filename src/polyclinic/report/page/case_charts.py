"""The values of single cases: how they are distributed at each site, for each method."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from polyclinic.evaluation.aggregate import Row, mean
from polyclinic.report.page.chart import Chart, Trace, axis, chart_text, rounded
from polyclinic.report.page.colours import method_style
from polyclinic.report.page.opening import metric_name
from polyclinic.report.page.results import Grid
from polyclinic.report.page.score_tables import distances
from polyclinic.report.tables import metric_scale, metric_unit

_ROW = 19  # pixels of a box
_MOST_POINTS = 3000  # in a chart; with more, single cases are not told apart, and a browser gets slow


def values_of_cases(rows: Iterable[Row], metric: str) -> dict[str, dict[str, float]]:
    """``site -> case -> value`` of a metric, or of its value for one class (``dice/nucleus``).

    The value of a case is the mean over its images of the mean over their classes, and over the parts that test it.
    """
    base, _, only = metric.partition("/")
    found: dict[str, dict[str, dict[tuple[str, str], list[float]]]] = {}
    for row in rows:
        if row["metric"] == base and only in ("", row["class"]):
            images = found.setdefault(row["site"], {}).setdefault(row["case"], {})
            images.setdefault((row.get("part", ""), row["image"]), []).append(row["value"])
    return {
        site: {case: mean(mean(values) for values in images.values()) for case, images in cases.items()}
        for site, cases in found.items()
    }


def cases_over_seeds(grid: Grid, method: str, metric: str) -> dict[str, dict[str, float]]:
    """``site -> case -> value``, the mean over the seeds that tested the case; cases without a value are left out."""
    gathered: dict[str, dict[str, list[float]]] = {}
    for run in grid.of(method):
        for site, cases in values_of_cases(run.cases, metric).items():
            for case, value in cases.items():
                if not isnan(value):
                    gathered.setdefault(site, {}).setdefault(case, []).append(value)
    return {
        site: {case: mean(values) for case, values in sorted(cases.items())} for site, cases in sorted(gathered.items())
    }


def case_chart(grid: Grid, metric: str) -> Chart | None:
    """A box and a point for every case, by site and method."""
    scale, data, sites = metric_scale(metric), list[Trace](), dict[str, None]()
    for index, method in enumerate(grid.methods):
        values = cases_over_seeds(grid, method, metric)
        if not values:
            continue
        sites |= dict.fromkeys(values)
        colour, _, marker = method_style(index)
        listed = [(site, case, value) for site, cases in values.items() for case, value in cases.items()]
        data.append(
            {
                "type": "box", "orientation": "h", "name": chart_text(method), "meta": {"method": index},
                "x": rounded(value * scale for *_, value in listed), "y": [chart_text(site) for site, *_ in listed],
                "text": [chart_text(case) for _, case, _ in listed], "boxpoints": "all", "jitter": 0.5, "pointpos": 0,
                "hovertemplate": "%{text}: %{x:.2f}", "marker": {"color": f"{colour}/0.6", "size": 6, "symbol": marker},
                "line": {"color": colour, "width": 1.4}, "fillcolor": f"{colour}/0.12", "showlegend": False,
                "offsetgroup": str(index),
            }
        )  # fmt: skip
    if not data:
        return None
    crowded = sum(len(trace["x"]) for trace in data) > _MOST_POINTS
    if crowded:
        data = [{**trace, "boxpoints": "outliers"} for trace in data]
    names = [chart_text(site) for site in sites]
    unit = {"percent": " in %", "distance": f" in {distances(grid)}", "none": ""}[metric_unit(metric)]
    layout = {
        "boxmode": "group", "boxgap": 0.28, "boxgroupgap": 0.16, "hovermode": "closest",
        "xaxis": axis(f"{chart_text(metric_name(metric))} of a case{unit}"),
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": names, "autorange": "reversed"},
    }  # fmt: skip
    seeds = ", the mean over the seeds that tested it" if len(grid.seeds) > 1 else ""
    points = "A point is a case far from the others" if crowded else "A point is a case (patient)"
    note = f"{points}{seeds}; a box holds the middle half of them, its line is the median."
    return Chart(f"{metric} of the cases by site", note, data, layout, 90 + len(names) * (len(data) + 1) * _ROW)
