"""The pictures of a study: lines over the values of one key, heat maps over two. As PNG, PDF and SVG."""

from __future__ import annotations

from math import ceil, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.core.files import atomic_write
from polyclinic.report.tables import metric_scale, metric_unit
from polyclinic.runs.grid_plan import folder_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from polyclinic.report.study import StudyTable

# Without a date, so that the same study gives the same files.
_FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
_ACROSS = 3  # heat maps side by side


def draw_study(table: StudyTable, folder: Path) -> None:
    """``study.png``, ``.pdf`` and ``.svg``; with two keys also ``study-METHOD.png`` and so on."""
    if not table.axes:
        save_figure(lines(table), folder / "study")
        return
    save_figure(heat_maps(table, table.methods), folder / "study")
    for method in table.methods if len(table.methods) > 1 else ():
        save_figure(heat_maps(table, (method,)), folder / f"study-{folder_name(method)}")


def save_figure(figure: Figure, stem: Path) -> None:
    """A file for each format."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar in a name is a dollar
    # Fonts that journals accept, and names inside of an SVG that do not change with every call.
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "polyclinic"}):
        for suffix, metadata in _FORMATS.items():
            with atomic_write(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
                figure.savefig(temporary, format=suffix, dpi=150, metadata=metadata)


def lines(table: StudyTable) -> Figure:
    """A line a method, with bars of one standard deviation from two seeds on; dashed where the key says nothing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes: Axes = figure.subplots()
    values = in_order(table.values)
    numbers = [_number(value) for value in values]
    places = [number for number in numbers if number is not None]
    if len(places) < len(values):
        places = list(map(float, range(len(values))))
    scale = metric_scale(table.metric)
    for method in table.methods:
        scores = [table.mean(method, value) for value in values]
        means = [nan if mean is None else mean * scale for mean in scores]
        spreads = [table.deviation(method, value) for value in values]
        bars = [nan if spread is None else spread * scale for spread in spreads]
        still = table.stands_still(method)
        known = None if still or all(map(isnan, bars)) else bars
        axes.errorbar(places, means, known, fmt="--" if still else "-o", capsize=3, markersize=4, label=method)
    axes.set_xticks(places, values)
    axes.set_xlabel(table.key)
    axes.set_ylabel(_unit(table.metric))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def heat_maps(table: StudyTable, methods: tuple[str, ...]) -> Figure:
    """A map a method: the first key downwards, the second across. All maps of a study have one scale of colours."""
    from matplotlib.figure import Figure

    (first, downwards), (second, across) = ((key, in_order(values)) for key, values in table.axes.items())
    scale = metric_scale(table.metric)

    def grid(method: str) -> list[list[float]]:
        means = ([table.mean(method, f"{one}, {other}") for other in across] for one in downwards)
        return [[nan if mean is None else mean * scale for mean in row] for row in means]

    known = [v for method in table.methods for row in grid(method) for v in row if not isnan(v)] or [0.0]
    columns = 2 if len(methods) == 4 else min(len(methods), _ACROSS)
    rows = ceil(len(methods) / columns)
    size = (1.6 + columns * max(2.2, 0.75 * len(across)), 0.4 + rows * max(1.9, 0.55 * len(downwards) + 0.9))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, method in zip(panels, methods, strict=False):
        numbers = grid(method)
        image = panel.imshow(numbers, cmap="viridis", vmin=min(known), vmax=max(known), aspect="auto")
        for y, row in enumerate(numbers):
            for x, number in enumerate(row):
                _write_cell(panel, x, y, number, image)
        panel.set_xticks(range(len(across)), across)
        panel.set_yticks(range(len(downwards)), downwards)
        panel.set_title(method, fontsize="small")
        panel.set_xlabel(second)
        panel.set_ylabel(first)
    used = list(figure.axes)[: len(methods)]
    for panel in list(figure.axes)[len(methods) :]:
        panel.remove()
    figure.colorbar(used[0].images[0], ax=used, label=_unit(table.metric))
    return figure


def _write_cell(panel: Axes, x: int, y: int, number: float, image: Any) -> None:
    """The number in a cell, in black or white, whichever is read better on its colour."""
    if isnan(number):
        panel.text(x, y, "-", ha="center", va="center")
        return
    red, green, blue, _ = image.cmap(image.norm(number))
    light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    # Black and white have the same contrast, as WCAG defines it, where (luminance + 0.05)**2 = 1.05 * 0.05.
    panel.text(x, y, f"{number:.2f}", ha="center", va="center", color="black" if light > 0.179 else "white")


def in_order(values: tuple[str, ...]) -> list[str]:
    """Values from low to high where all are numbers, else as they were given."""
    numbers = [_number(value) for value in values]
    if any(number is None for number in numbers):
        return list(values)
    return [value for _, value in sorted(zip(numbers, values, strict=True))]


def _unit(metric: str) -> str:
    return f"{metric}{' in %' if metric_unit(metric) == 'percent' else ''}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
