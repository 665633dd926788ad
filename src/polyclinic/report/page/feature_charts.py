"""Features or prototypes by site, before and after alignment, on two principal components."""

from __future__ import annotations

from typing import Any

from polyclinic.report.page.chart import Chart, axis, chart_text, rounded
from polyclinic.report.page.colours import MARKERS, site_style
from polyclinic.report.page.pictures import Features, Panel, Point


def feature_charts(features: Features) -> list[tuple[str, Chart]]:
    """A title and a chart for each panel; both halves have one scale, so that they can be compared."""
    return [
        (f"{panel.method}: {panel.title}", _chart(panel)) for panel in features.panels if panel.before or panel.after
    ]


def _chart(panel: Panel) -> Chart:
    sites = list(dict.fromkeys(point.site for point in (*panel.before, *panel.after)))
    labels = list(dict.fromkeys(point.label for point in (*panel.before, *panel.after)))
    data = [
        _trace(site, label, [p for p in points if p.site == site and p.label == label], half, sites, labels)
        for half, points in enumerate((panel.before, panel.after))
        for site in sites
        for label in labels
    ]
    shares = [f" ({share:.0%} of the variance)" for share in panel.explained[:2]] + ["", ""]
    x, y = (_range([getattr(point, way) for point in (*panel.before, *panel.after)]) for way in "xy")
    layout = {
        "grid": {"rows": 1, "columns": 2, "pattern": "independent", "xgap": 0.08},
        "xaxis": axis(f"before: component 1{shares[0]}", range=x),
        "yaxis": axis(f"component 2{shares[1]}", range=y),
        "xaxis2": axis("after: component 1", range=x),
        "yaxis2": {"range": y, "showticklabels": False},
        "hovermode": "closest",
    }
    note = "Colours are sites" + (", shapes are classes. " if len(labels) > 1 else ". ") + _between(panel)
    return Chart(panel.title, f"{note} {panel.note}".strip(), [t for t in data if t["x"]], layout, 380)


def _trace(
    site: str, label: str | None, points: list[Point], half: int, sites: list[str], labels: list[Any]
) -> dict[str, Any]:
    colour, _ = site_style(sites.index(site))
    name = site if label is None or len(labels) == 1 else f"{site}, {label}"
    return {
        "type": "scatter", "mode": "markers", "x": rounded(p.x for p in points), "y": rounded(p.y for p in points),
        "name": chart_text(name), "legendgroup": chart_text(name), "showlegend": half == 0,
        "xaxis": "x2" if half else "x", "yaxis": "y2" if half else "y", "hovertemplate": "%{text}<extra></extra>",
        "text": [chart_text(name)] * len(points),
        "marker": {"color": f"{colour}/0.85", "size": 9, "symbol": MARKERS[labels.index(label) % len(MARKERS)]},
    }  # fmt: skip


def _between(panel: Panel) -> str:
    """The closer sites lie together, the less a feature says where an image comes from."""
    if panel.between_sites.keys() != {"before", "after"}:
        return ""
    before, after = (panel.between_sites[when] for when in ("before", "after"))
    return f"{before:.0%} of the variance lies between sites before, {after:.0%} after."


def _range(values: list[float]) -> list[float]:
    low, high = min(values), max(values)
    room = (high - low) * 0.08 or 1.0
    return [low - room, high + room]
