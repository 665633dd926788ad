"""The gallery for the template and for the script that moves through slices."""

from __future__ import annotations

from typing import Any

from polyclinic.report.page.opening import metric_name
from polyclinic.report.page.pictures import Case, Pictures, Skipped
from polyclinic.report.page.results import Grid
from polyclinic.report.tables import value_text

_SMALL = 160  # pixels; smaller pictures are shown as they are, pixel by pixel


def gallery_context(store: dict[str, Any], pictures: Pictures | None, grid: Grid) -> dict[str, Any]:
    """What the template shows; files and slices go into ``store``, from which the script takes them."""
    if pictures is None:
        return {"gallery": None}
    gallery = pictures.gallery
    store["files"] |= pictures.files
    sites = []
    for site, cases in gallery.sites.items():
        shown = []
        for case in cases:
            methods = [method for method in gallery.methods if any(method in one.predictions for one in case.slices)]
            store["cases"].append(_slices(case, methods))
            shown.append(_case(case, methods, gallery.metric, grid, len(store["cases"]) - 1))
        sites.append(
            {"name": site, "cases": shown, "tiles": max((len(case["tiles"]) for case in shown), default=0) + 1}
        )
    classes = [{"name": name, "colour": colour} for name, colour in zip(gallery.classes, gallery.colours, strict=False)]
    context = {
        "sites": sites,
        "classes": classes,
        "metric": metric_name(gallery.metric),
        "reference": gallery.reference,
        "skipped": [_skipped(one) for one in gallery.skipped],
    }
    return {"gallery": context}


def _skipped(one: Skipped) -> str:
    who = " ".join(name for name in (one.method, f"at {one.site}" if one.site else "") if name)
    return f"No picture{f' of {who}' if one.method else f' {who}' if who else ''}: {one.reason}"


def _slices(case: Case, methods: list[str]) -> dict[str, Any]:
    """File names by slice: image, truth, then one a method, in the order of the tiles."""
    return {
        "first": case.first,
        "slices": [
            {"index": one.index, "image": one.image, "truth": one.truth,
             "predictions": [one.predictions.get(method) for method in methods]}
            for one in case.slices
        ],
    }  # fmt: skip


def _case(case: Case, methods: list[str], metric: str, grid: Grid, number: int) -> dict[str, Any]:
    height, width = case.size
    tiles = [
        {
            "method": method,
            "index": grid.methods.index(method) if method in grid.methods else 0,
            "score": value_text(case.scores.get(method), None, metric),
            "model": case.models.get(method, ""),
            "differs": method in case.differs,
        }
        for method in methods
    ]
    return {
        "number": number, "rank": case.rank, "case": case.case, "seed": case.seed, "part": case.part, "tiles": tiles,
        "slices": len(case.slices), "first": case.first, "index": case.slices[case.first].index,
        "height": max(height, 1), "width": max(width, 1), "small": max(height, width) <= _SMALL,
    }  # fmt: skip
