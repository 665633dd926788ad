"""The critical-difference diagram (Demšar, 2006): mean ranks over sites, and which methods they do not tell apart."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.core.files import atomic_write
from polyclinic.core.wording import printable_line
from polyclinic.evaluation.ranks import alike
from polyclinic.report.site_ranks import Ranks
from polyclinic.report.statistics_words import p_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("critical-difference.pdf", "critical-difference.svg")
_LONGEST_NAME = 48  # letters
_ROW = 0.26  # inches
_TOP = 4.2  # rows above the scale
_NO_DATE = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
_MARGIN = 0.35  # of the width of all ranks, for names


def write_diagrams(folder: Path, ranks: Ranks | None) -> None:
    """Write the diagram as PDF and SVG; without a test of the ranks remove that of an earlier comparison."""
    if ranks is None or ranks.critical_difference is None:
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        return
    draw(ranks, [folder / name for name in FILES])


def draw(ranks: Ranks, paths: Sequence[Path]) -> None:
    """Draw the diagram into files, the kind of each by its ending; the same ranks give the same bytes."""
    figure = _figure(ranks)
    for path in paths:
        with atomic_write(path) as temporary:
            _save(figure, temporary, path.suffix[1:])


def svg_of(ranks: Ranks) -> bytes:
    """The diagram as SVG, letters as outlines, so that it looks the same everywhere."""
    file = io.BytesIO()
    _save(_figure(ranks), file, "svg")
    return file.getvalue()


def _save(figure: Figure, target: Path | io.BytesIO, kind: str) -> None:
    import matplotlib as mpl

    # Real fonts in a PDF, as journals ask for; outlines and fixed names in an SVG.
    settings = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "polyclinic"}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name may have letters that the font has not
        # "tight": a long name makes it wider and is not cut
        figure.savefig(target, format=kind, metadata=_NO_DATE[kind], bbox_inches="tight")


def _figure(ranks: Ranks) -> Figure:
    from matplotlib.figure import Figure

    names = [_short(printable_line(name)) for name in ranks.mean_ranks]
    values = np.array(list(ranks.mean_ranks.values()))
    groups = alike(values, ranks.critical_difference or 0.0)
    lowest = -0.6 - (len(names) + 1) // 2 - 0.6 * len(groups)
    figure = Figure(figsize=(6.4, _ROW * (_TOP - lowest)))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_ylim(lowest, _TOP)
    _draw_scale(axes, ranks, len(names))
    for number, (first, last) in enumerate(groups):
        axes.plot(values[[first, last]], [-0.45 - 0.6 * number] * 2, color="black", linewidth=3, solid_capstyle="round")
    _draw_names(axes, names, values, 0.6 * len(groups))
    return figure


def _draw_scale(axes: Any, ranks: Ranks, methods: int) -> None:
    """The line of ranks, above it the critical difference and what the test says."""
    margin = _MARGIN * (methods - 1)
    axes.set_xlim(1 - margin, methods + margin)
    axes.plot([1, methods], [0, 0], color="black", linewidth=1)
    for place in range(1, methods + 1):
        axes.plot([place, place], [0, 0.25], color="black", linewidth=1)
        axes.text(place, 0.35, str(place), ha="center", va="bottom", fontsize=9)
    apart = ranks.critical_difference or 0.0
    shown = min(apart, methods - 1)  # with few sites it is longer than the scale
    axes.plot([1, 1 + shown], [1.7, 1.7], color="black", linewidth=1, marker="|", markersize=6)
    more = "" if apart <= methods - 1 else ", more than any two ranks can be apart"
    axes.text(1, 1.95, f"critical difference {apart:.2f}{more}", ha="left", va="bottom", fontsize=9)
    test = f"mean ranks over {len(ranks.sites)} sites, 1 is best; Friedman {p_text(ranks.friedman_p or 0.0)}"
    axes.text(1, 3.0, test, ha="left", va="bottom", fontsize=9)


def _draw_names(axes: Any, names: Sequence[str], values: np.ndarray, below: float) -> None:
    """The better half of the methods on the left, the other on the right, from the middle downwards."""
    methods, half = len(names), (len(names) + 1) // 2
    for place, (name, rank) in enumerate(zip(names, values, strict=True)):
        left = place < half
        row = -1.0 - below - (place if left else methods - 1 - place)
        end = 1 - 0.03 * (methods - 1) if left else methods + 0.03 * (methods - 1)
        axes.plot([rank, rank, end], [0, row, row], color="black", linewidth=0.8)
        label = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        # A $ in a name is no formula.
        axes.text(
            end, row, f" {label} ", ha="right" if left else "left", va="center", fontsize=9, parse_math=False
        )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
