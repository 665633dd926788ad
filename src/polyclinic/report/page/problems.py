"""Failures and refusals by round: whose update did not count, when, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from polyclinic.core.wording import counted, printable_line
from polyclinic.report.page.chart import Chart, axis, chart_text
from polyclinic.report.page.colours import method_style
from polyclinic.report.page.results import Grid

_MOST = 200  # lines of the table


@dataclass(frozen=True)
class Problem:
    """One site in one round of one run, counted from 1."""

    index: int
    method: str
    seed: int
    part: str
    round: int
    site: str
    reason: str


def problems_of(grid: Grid) -> list[Problem]:
    """All of them, in the order of runs and rounds."""
    return list(_problems(grid))


def problem_rows(problems: list[Problem]) -> tuple[list[list[str]], str]:
    """Lines for a table, one for rounds in a row with the same reason, and a sentence about those left off."""
    rows: list[list[str]] = []
    before: Problem | None = None
    first = 0
    for one in problems:
        same = before is not None and _same(before, one)
        first = first if same else one.round
        where = "" if one.part == "all" else f", {one.part}"
        rounds = str(one.round) if first == one.round else f"{first} to {one.round}"
        row = [f"{one.method} seed {one.seed}{where}", rounds, one.site, one.reason]
        rows[-1:] = [row] if same else [*rows[-1:], row]
        before = one
    left = f"{len(rows) - _MOST} more lines are in the events.jsonl of the runs." if len(rows) > _MOST else ""
    return rows[:_MOST], left


def problem_words(grid: Grid, problems: list[Problem]) -> str:
    """How many, in a sentence."""
    rounds = sum(len(run.events) for run in grid.runs)
    if not problems:
        return f"No site failed and no update was refused, in {counted(rounds, 'round')} of {_runs(grid)}."
    return f"{counted(len(problems), 'update')} did not count, in {counted(rounds, 'round')} of {_runs(grid)}."


def further_words(grid: Grid) -> list[str]:
    """Warnings of rounds, and sites that could not be tested."""
    lines: dict[str, None] = {}
    for run in grid.runs:
        name = f"{run.method} seed {run.seed}"
        for event in run.events:
            for warning in event.get("warnings", []):
                lines[f"{name}, round {event['round'] + 1}: {printable_line(str(warning))}"] = None
        for site, reason in (run.summary or {}).get("untested", {}).items():
            lines[f"{name}: {site} was not tested: {printable_line(str(reason))}"] = None
        if run.summary is None and (stopped := run.table("live.json").get("stopped")):
            lines[f"{name} stopped: {printable_line(str(stopped))}"] = None
    return list(lines)[:_MOST]


def problem_chart(grid: Grid, problems: list[Problem]) -> Chart | None:
    """A mark for each problem, by round and site; nothing where there is none."""
    if not problems:
        return None
    data: list[dict[str, Any]] = []
    for index, method in enumerate(grid.methods):
        own = [one for one in problems if one.method == method]
        colour, _, marker = method_style(index)
        data.append(
            {
                "type": "scatter", "mode": "markers", "name": chart_text(method), "x": [one.round for one in own],
                "y": [chart_text(one.site) for one in own],
                "text": [chart_text(f"{method} seed {one.seed}: {one.reason}"[:120]) for one in own],
                "marker": {"color": colour, "symbol": marker, "size": 9}, "meta": {"method": index},
                "showlegend": False, "hovertemplate": "round %{x}, %{y}<br>%{text}<extra></extra>",
            }
        )  # fmt: skip
    rounds = max(int(event["round"]) + 1 for run in grid.runs for event in run.events)
    sites = list(dict.fromkeys(chart_text(one.site) for one in problems))
    layout = {
        "xaxis": axis("round", range=[0.5, rounds + 0.5], tickformat="d"),
        "yaxis": {"type": "category", "categoryorder": "array", "categoryarray": sites, "autorange": "reversed"},
        "hovermode": "closest",
    }
    note = "A mark is an update that did not count: the site failed, was away or late, or its update was refused."
    return Chart("Problems by round and site", note, data, layout, 110 + 26 * len(sites))


def _problems(grid: Grid) -> Iterator[Problem]:
    for run in grid.runs:
        index = grid.methods.index(run.method)
        by_site = ((str(e["part"]), int(e["round"]) + 1, e["refused"]) for e in run.events if e.get("refused"))
        for part, number, refused in by_site:
            for site, reason in refused.items():
                yield Problem(index, run.method, run.seed, part, number, site, printable_line(str(reason)))


def _same(before: Problem, after: Problem) -> bool:
    about = (before.method, before.seed, before.part, before.site, before.reason)
    return about == (after.method, after.seed, after.part, after.site, after.reason) and after.round - before.round == 1


def _runs(grid: Grid) -> str:
    return counted(len(grid.runs), "run")
