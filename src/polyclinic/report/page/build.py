"""From results to the sections of the page, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.report.page import opening, origin, problems
from polyclinic.report.page.case_charts import case_chart
from polyclinic.report.page.chart import MANY, Chart
from polyclinic.report.page.cost_charts import cost_charts, cost_table, costs_of
from polyclinic.report.page.curve_charts import loss_charts, validation_chart
from polyclinic.report.page.document import document, render
from polyclinic.report.page.exchange import Declared, exchange_of
from polyclinic.report.page.feature_charts import feature_charts
from polyclinic.report.page.gallery import gallery_context
from polyclinic.report.page.pictures import Features, Pictures
from polyclinic.report.page.rank_diagram import rank_diagram
from polyclinic.report.page.results import Grid, Results
from polyclinic.report.page.score_tables import ablation_table, metric_table, run_table, score_table, study_table
from polyclinic.report.page.study_charts import study_chart
from polyclinic.report.page.training_notes import late_rise_note, steps_note, stuck_notice
from polyclinic.report.statistics import GridStatistics
from polyclinic.report.study import study_of


@dataclass(frozen=True)
class Extras:
    """What a grid's part of the page shows beside its record; ``no_pictures`` says why there are none."""

    statistics: GridStatistics | None = None
    pictures: Pictures | None = None
    features: Features | None = None
    no_pictures: str = ""


@dataclass
class Page:
    """The page's sections as HTML by identifier, and what its scripts draw from."""

    title: str
    version: str = ""
    sections: dict[str, str] = field(default_factory=dict)
    charts: dict[str, Any] = field(default_factory=dict)
    gallery: dict[str, Any] = field(default_factory=lambda: {"cases": [], "files": {}})

    def add_chart(self, name: str, chart: Chart) -> dict[str, Any]:
        """Keep a chart's data; what the template needs of it is given back."""
        self.charts[name] = chart.plain()
        return {"id": name, "label": chart.label, "note": chart.note, "height": chart.height}

    @property
    def data(self) -> dict[str, Any]:
        """For the scripts; the fingerprints tell a page that is open which sections have changed."""
        prints = {name: sha256(html.encode()).hexdigest()[:16] for name, html in self.sections.items()}
        return {"charts": self.charts, "gallery": self.gallery, "fingerprints": prints, "version": self.version}

    def html(self, live: bool = False) -> str:
        """The whole file."""
        return document(self.title, self.sections.items(), self.data, live)


def build_page(
    results: Results, metric: str, extras: Mapping[Path, Extras], declared: Declared | None, live: str | None = None
) -> Page:
    """All sections. ``extras`` are by the folder of a grid; ``live`` is HTML about a run that goes on."""
    page = Page(opening.question(results))
    page.sections["opening"] = _opening(results, metric, extras, live)
    many = len(results.grids) > 1
    if results.kind == "study":
        page.sections["study"] = _study(page, results, metric)
    if len(results.grids[0].methods) > 1:
        page.sections["methods"] = _chips(results.grids[0], metric)
    for number, grid in enumerate(results.grids):
        suffix = f"-{number}" if many else ""
        for name, html in _chapter(page, results, grid, metric, extras.get(grid.folder, Extras()), declared, suffix):
            page.sections[f"{name}{suffix}"] = html
    page.sections["origin"] = render(
        "origin.html",
        commands=origin.commands(results),
        recipe=origin.recipe_text(results),
        plugins=origin.plugins(results),
        versions=origin.versions(results),
        splits=origin.splits(results),
        folder=results.folder.resolve().name,
    )
    return page


def _opening(results: Results, metric: str, extras: Mapping[Path, Extras], live: str | None) -> str:
    grids = results.grids
    answers = [
        {
            "title": grid.title,
            "sentence": opening.answer(grid, metric),
            "conclusion": opening.conclusion(extras.get(grid.folder, Extras()).statistics),
            "verdicts": opening.verdicts(extras.get(grid.folder, Extras()).statistics),
        }
        for grid in grids
    ]
    statistics = next((e.statistics for grid in grids if (e := extras.get(grid.folder)) and e.statistics), None)
    return render(
        "opening.html",
        question=opening.question(results),
        answers=answers,
        missing=opening.missing_words(grids),
        note=statistics.note if statistics else "",
        ranks=statistics.ranks.sentence if statistics and statistics.ranks and len(grids) == 1 else "",
        facts=opening.facts(results, metric),
        live=live,
    )


def _study(page: Page, results: Results, metric: str) -> str:
    table = study_of(results.folder, metric, partial=True)
    chart = page.add_chart("study", study_chart(results, table))
    chapters = [{"number": number, "title": grid.title} for number, grid in enumerate(results.grids)]
    return render("study.html", key=table.key, table=study_table(results, table), chart=chart, chapters=chapters)


def _chips(grid: Grid, metric: str) -> str:
    """The bar that shows and hides methods in all charts."""
    table = grid.comparison(metric)
    means = {method: value for method in grid.methods if (value := table.mean(method, "average")) is not None}
    shown = [grid.reference]
    while len(shown) < MANY and (rest := {m: v for m, v in means.items() if m not in shown}):
        shown.append(opening.best_method(rest, metric))
    few = len(grid.methods) <= MANY or len(shown) == 1
    chips = [
        {"index": index, "name": method, "shown": few or method in shown} for index, method in enumerate(grid.methods)
    ]
    return render("methods.html", chips=chips, few=few)


def _chapter(
    page: Page, results: Results, grid: Grid, metric: str, extras: Extras, declared: Declared | None, suffix: str
) -> Sequence[tuple[str, str]]:
    """The sections of one grid."""
    chapter = {"number": suffix.removeprefix("-"), "title": grid.title}

    def charts(name: str, found: Sequence[Chart]) -> list[dict[str, Any]]:
        return [page.add_chart(f"{name}{suffix}-{number}", chart) for number, chart in enumerate(found)]

    def section(name: str, **context: Any) -> tuple[str, str]:
        return name, render(f"{name}.html", chapter=chapter, **context)

    single = results.kind == "run"
    scores = run_table(grid) if single else score_table(grid, metric, extras.statistics)
    further = metric_table(grid) if not single and len(grid.metrics) > 1 else None
    curve, cases, costs = validation_chart(grid), case_chart(grid, metric), costs_of(grid, metric)
    found = problems.problems_of(grid)
    rows, left_off = problems.problem_rows(found)
    marks = problems.problem_chart(grid, found)
    feature_list = feature_charts(extras.features) if extras.features else []
    ablation = ablation_table(grid, results.plan, metric) if results.kind == "ablation" else None
    sections = [
        section(
            "scores", table=scores if grid.finished else None, further=further, ablation=ablation,
            stuck=stuck_notice(grid), steps=steps_note(grid), rising=late_rise_note(grid),
            ranks=rank_diagram(extras.statistics),
        )
    ]  # fmt: skip
    sections += [
        section(
            "convergence", curve=charts("curve", [curve] if curve else []), losses=charts("loss", loss_charts(grid))
        ),
        section("cases", charts=charts("cases", [cases] if cases else []), metric=opening.metric_name(metric)),
        section(
            "costs", charts=charts("cost", cost_charts(costs, metric)), table=cost_table(costs, metric),
        ),
        section("pictures", **gallery_context(page.gallery, extras.pictures, grid), reason=extras.no_pictures),
    ]  # fmt: skip
    if feature_list:
        drawn = charts("features", [chart for _, chart in feature_list])
        sections.append(section("features", panels=list(zip([t for t, _ in feature_list], drawn, strict=True))))
    sections.append(
        section(
            "problems", sentence=problems.problem_words(grid, found), rows=rows, left_off=left_off,
            charts=charts("problems", [marks] if marks else []), further=problems.further_words(grid),
        )
    )  # fmt: skip
    sections.append(section("exchange", exchange=exchange_of(grid, declared)))
    return sections


def check_metric(results: Results, metric: str | None) -> str:
    """The metric of the page: the one that was asked for, or Dice, or else the first one that was measured."""
    names = dict.fromkeys(
        name for grid in results.grids for run in grid.finished for name in (run.summary or {})["average"]
    )
    if metric is None:
        return "dice" if "dice" in names or not names else next(iter(names))
    if names and metric not in names:
        raise PolyclinicError(f"--metric {metric}: not measured here; there are {', '.join(names)}.")
    return metric
