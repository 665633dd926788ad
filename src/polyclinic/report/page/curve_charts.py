"""Convergence: validation Dice and training losses by round, with bands over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean
from typing import Any

from polyclinic.report.page.chart import Chart, Trace, axis, band, chart_text, finite, rounded
from polyclinic.report.page.colours import method_style, site_style
from polyclinic.report.page.results import Grid, RunRecord

_FEW_ROUNDS = 6
Reading = Callable[[dict[str, Any]], float | None]
"""One number of the record of a round."""


def curve(run: RunRecord, reading: Reading, scale: float = 1.0) -> dict[int, float]:
    """A number by round, counted from 1; the mean over the parts of the protocol that have the round."""
    gathered: dict[int, list[float]] = {}
    for event in run.events:
        if (value := reading(event)) is not None:
            gathered.setdefault(int(event["round"]) + 1, []).append(value * scale)
    return {number: mean(values) for number, values in sorted(gathered.items())}


def validation(event: dict[str, Any]) -> float | None:
    """The mean Dice of the validation images over sites."""
    return finite(event["validation"]["dice"])


def site_validation(site: str) -> Reading:
    """The same of one site."""
    return lambda event: finite(event["validation"]["sites"].get(site))


def loss(term: str) -> Reading:
    """The mean over sites of one term of the training loss."""

    def reading(event: dict[str, Any]) -> float | None:
        values = [value for losses in event["losses"].values() if (value := finite(losses.get(term))) is not None]
        return mean(values) if values else None

    return reading


def loss_terms(grid: Grid) -> list[str]:
    """All terms that any method has, in the order of their appearance."""
    events = (event for run in grid.runs for event in run.events)
    return list(dict.fromkeys(term for event in events for losses in event["losses"].values() for term in losses))


def validation_chart(grid: Grid) -> Chart | None:
    """Validation Dice by round: a line a method, or a line a site where there is one run."""
    layout = {
        "xaxis": _rounds(grid),
        "yaxis": axis("validation Dice in %"),
        "hovermode": "x unified",
    }
    if len(grid.runs) == 1:
        data, note = _by_site(grid), "A thin line is a site, the thick one the mean over sites. "
    else:
        data, note = list(_by_method(grid, validation, 100.0)), f"Mean over sites. {band_words(grid)} "
    if not data:
        return None
    note += "It is measured on validation images after each round, never on test images."
    return Chart("Validation Dice by round", note, data, layout, 380)


def loss_charts(grid: Grid) -> list[Chart]:
    """One small chart for each term of the training loss."""
    charts = []
    for term in loss_terms(grid):
        data = list(_by_method(grid, loss(term)))
        having = [method for method in grid.methods if any(curve(run, loss(term)) for run in grid.of(method))]
        who = "" if len(having) == len(grid.methods) else f"A term of {', '.join(having)} alone."
        layout = {
            "xaxis": _rounds(grid),
            "yaxis": axis(f"loss: {chart_text(term)}"),
            "hovermode": "x unified",
        }
        if data:
            charts.append(Chart(f"Training loss {term} by round", who, data, layout, 260))
    return charts


def _rounds(grid: Grid) -> dict[str, Any]:
    """The axis of rounds; of few rounds each has a mark, and no mark lies between two."""
    last = max((int(event["round"]) + 1 for run in grid.runs for event in run.events), default=0)
    return axis("round", tickformat="d", **({"dtick": 1} if last <= _FEW_ROUNDS else {}))


def band_words(grid: Grid) -> str:
    """What the shade around a line is."""
    if len(grid.seeds) < 2:
        return "One seed, so there is no band."
    return f"A band reaches from the lowest to the highest of {len(grid.seeds)} seeds."


def _by_method(grid: Grid, reading: Reading, scale: float = 1.0) -> Iterator[Trace]:
    for index, method in enumerate(grid.methods):
        rounds, middle, low, high = band(curve(run, reading, scale) for run in grid.of(method))
        if not rounds:
            continue
        colour, dash, _ = method_style(index)
        own = {"meta": {"method": index}, "type": "scatter"}
        if any(a < b for a, b in zip(low, high, strict=True)):
            yield {
                **own, "x": [*rounds, *rounds[::-1]], "y": rounded([*high, *low[::-1]]), "fill": "toself",
                "mode": "none", "fillcolor": f"{colour}/0.11", "hoverinfo": "skip", "showlegend": False,
            }  # fmt: skip
        yield {
            **own, "x": rounds, "y": rounded(middle), "name": chart_text(method), "showlegend": False,
            "mode": "lines+markers" if len(rounds) < 3 else "lines",
            "line": {"color": colour, "dash": dash, "width": 2},
            "marker": {"color": colour, "size": 5}, "hovertemplate": "%{y:.2f}",
        }  # fmt: skip


def _by_site(grid: Grid) -> list[Trace]:
    (run,) = grid.runs
    whole = curve(run, validation, 100.0)
    lines = [(site, curve(run, site_validation(site), 100.0), *site_style(i), 1.2) for i, site in enumerate(grid.sites)]
    lines.append(("mean over sites", whole, "@ink", "solid", 3.0))
    return [
        {
            "type": "scatter", "x": list(points), "y": rounded(points.values()), "name": chart_text(name),
            "mode": "lines+markers" if len(points) < 3 else "lines",
            "line": {"color": colour, "dash": dash, "width": width},
            "marker": {"color": colour, "size": 5}, "hovertemplate": "%{y:.2f}", "showlegend": True,
        }
        for name, points, colour, dash, width in lines
        if points
    ]  # fmt: skip
