"""Figures for a paper, as PDF and SVG: convergence, the distribution of cases, accuracy against cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from polyclinic.core.files import atomic_write
from polyclinic.core.wording import MB
from polyclinic.report.page.case_charts import cases_over_seeds
from polyclinic.report.page.chart import band
from polyclinic.report.page.colours import COUNT, LIGHT_METHODS
from polyclinic.report.page.cost_charts import costs_of
from polyclinic.report.page.curve_charts import curve, validation
from polyclinic.report.page.opening import metric_name
from polyclinic.report.page.results import Grid, Results
from polyclinic.report.tables import metric_scale, metric_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SETTINGS = {
    "font.family": "sans-serif", "font.size": 8, "axes.linewidth": 0.6, "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True, "grid.linewidth": 0.4, "grid.alpha": 0.4, "axes.axisbelow": True, "legend.frameon": False,
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "polyclinic", "text.usetex": False,
}  # fmt: skip
_DASHES = ("-", "--", ":", "-.")
_WIDTH = 6.3  # inches: two columns of most journals
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None, "Creator": "polyclinic"}, "svg": {"Date": None}}


def write_figures(results: Results, metric: str, folder: Path) -> list[Path]:
    """Write every figure that there are numbers for; the same numbers give the same bytes."""
    from matplotlib import rc_context

    written = []
    with rc_context(_SETTINGS):
        for grid in results.grids:
            prefix = f"{grid.folder.name}-" if len(results.grids) > 1 else ""
            for name, figure in _figures(grid, metric):
                for kind, metadata in _METADATA.items():
                    path = folder / f"{prefix}{name}.{kind}"
                    with atomic_write(path) as temporary:
                        figure.savefig(temporary, format=kind, metadata=metadata)
                    written.append(path)
    return written


def _figures(grid: Grid, metric: str) -> Iterator[tuple[str, Figure]]:
    for name, draw in (("convergence", _convergence), ("cases", _cases), ("accuracy-cost", _costs)):
        figure = draw(grid, metric)
        if figure is not None:
            yield name, figure


def _convergence(grid: Grid, metric: str) -> Figure | None:  # noqa: ARG001
    curves = {m: band(curve(run, validation, 100.0) for run in grid.of(m)) for m in grid.methods}
    if not any(rounds for rounds, *_ in curves.values()):
        return None
    figure, axes = _new(2.6)
    for index, (method, (rounds, middle, low, high)) in enumerate(curves.items()):
        axes.fill_between(rounds, low, high, color=_colour(index), alpha=0.15, linewidth=0)
        axes.plot(rounds, middle, _DASHES[index // COUNT % 4], color=_colour(index), linewidth=1.2, label=plain(method))
    axes.set_xlabel("round")
    axes.set_ylabel("validation Dice in %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(figure, axes)
    return figure


def _cases(grid: Grid, metric: str) -> Figure | None:
    values = {method: cases_over_seeds(grid, method, metric) for method in grid.methods}
    sites = list(dict.fromkeys(site for cases in values.values() for site in cases))
    if not sites:
        return None
    figure, axes = _new(2.8)
    width, scale = 0.8 / len(values), metric_scale(metric)
    for index, (method, by_site) in enumerate(values.items()):
        places = [place - 0.4 + width * (index + 0.5) for place in range(len(sites))]
        numbers = [[value * scale for value in by_site.get(site, {}).values()] for site in sites]
        line = {"color": _colour(index), "linewidth": 0.8}
        axes.boxplot(
            numbers, positions=places, widths=width * 0.8, showfliers=False, patch_artist=True, manage_ticks=False,
            boxprops={"facecolor": (*_shares(index), 0.15), "edgecolor": _colour(index), "linewidth": 0.8},
            whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 1.2},
        )  # fmt: skip
        for place, points in zip(places, numbers, strict=True):
            axes.plot([place] * len(points), points, ".", color=_colour(index), markersize=2.5, alpha=0.6)
        axes.plot([], [], color=_colour(index), label=plain(method))
    axes.set_xticks(range(len(sites)), [plain(site) for site in sites])
    axes.set_ylabel(f"{plain(metric_name(metric))}{_unit(metric)}")
    _legend(figure, axes)
    return figure


def _costs(grid: Grid, metric: str) -> Figure | None:
    costs = [cost for cost in costs_of(grid, metric) if cost.scores]
    if not costs:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, 2.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    scale = metric_scale(metric)
    for cost in costs:
        middle = mean(cost.scores) * scale
        reach = [[middle - min(cost.scores) * scale], [max(cost.scores) * scale - middle]]
        style: dict[str, Any] = {
            "color": _colour(cost.index),
            "fmt": "o",
            "markersize": 4,
            "capsize": 2,
            "linewidth": 0.8,
        }
        axes[0].errorbar([cost.seconds], [middle], reach, label=plain(cost.method), **style)
        if not cost.images_leave:
            axes[1].errorbar([(cost.bytes_up + cost.bytes_down) / MB], [middle], reach, **style)
    axes[0].set_ylabel(f"average {plain(metric_name(metric))}{_unit(metric)}")
    axes[0].set_xlabel("seconds of a run")
    axes[1].set_xlabel("MB up and down in a run")
    for one in axes:
        one.set_xlim(left=0)
    _legend(figure, axes[0])
    return figure


def plain(text: str) -> str:
    """Text of others for matplotlib, which reads ``$`` as the start of mathematics.

    >>> plain("a$b")
    'a\\\\$b'
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable.replace("\\", "\\\\").replace("$", r"\$") if "$" in printable else printable


def _new(height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _legend(figure: Figure, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 5))


def _colour(index: int) -> str:
    return LIGHT_METHODS[index % COUNT]


def _shares(index: int) -> tuple[float, ...]:
    return tuple(int(_colour(index)[start : start + 2], 16) / 255 for start in (1, 3, 5))


def _unit(metric: str) -> str:
    return " in %" if metric_unit(metric) == "percent" else ""
