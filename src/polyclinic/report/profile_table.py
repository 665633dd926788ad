"""The tables of ``run --profile``: where the time went, by phase, site and component."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from polyclinic.core.files import read_json
from polyclinic.runs.profile import PROFILE, TRACE

_MOST = "most of it"
_MOST_SITES = 10
_SMALLEST_SHARE = 0.005


def print_profile(folder: Path) -> None:
    """What ``profile.json`` of a run folder holds."""
    console, path = Console(highlight=False), folder / PROFILE
    if not path.exists():
        console.print("No profile: the run was finished before, so there was nothing to do.")
        return
    profile = read_json(path)
    console.print(_phases(profile))
    for table in (_by_site(profile["sites"]), _by_component(profile["components"])):
        if table.row_count:
            console.print(table)
    for line in _remarks(profile, folder):
        console.print(line, markup=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(f"\n{columns[0]}", overflow="fold")
    for column in columns[1:]:
        table.add_column(f"\n{column}", justify="left" if column == _MOST else "right")
    return table


def _phases(profile: dict[str, Any]) -> Table:
    """What the run waited for, then what went on beside it; shares are of the whole time."""
    table, whole = _table("phase", "seconds", "share", "times"), profile["seconds"]
    other = {"phase": "other", "seconds": profile["other"], "count": ""}
    for row in _largest([row for row in profile["phases"] if not row["beside"]] + [other], whole):
        share = f"{row['seconds'] / whole:.1%}"
        table.add_row(row["phase"], f"{row['seconds']:.2f}", share, str(row["count"]))
    table.add_row("in all", f"{whole:.2f}", "", "", style="bold")
    for row in _largest([row for row in profile["phases"] if row["beside"]], whole):
        table.add_row(f"beside: {row['phase']}", f"{row['seconds']:.2f}", "", str(row["count"]))
    return table


def _largest(rows: list[dict[str, Any]], whole: float) -> list[dict[str, Any]]:
    """The rows that matter, the largest first, and the sum of the others."""
    small = [row for row in rows if row["seconds"] < _SMALLEST_SHARE * whole and row["phase"] != "other"]
    large = sorted((row for row in rows if row not in small), key=lambda row: -float(row["seconds"]))
    more = {"phase": f"{len(small)} more", "seconds": sum(row["seconds"] for row in small), "count": ""}
    return [*large, more] if len(small) > 1 else large + small


def _by_site(sites: dict[str, dict[str, float]]) -> Table:
    """The sites that took longest, with the phases that took most of it."""
    table = _table("site", "seconds", _MOST)
    order = sorted(sites, key=lambda site: -sum(sites[site].values()))
    for site in order[:_MOST_SITES]:
        largest = sorted(sites[site].items(), key=lambda item: -item[1])[:3]
        words = ", ".join(f"{name} {seconds:.2f}" for name, seconds in largest)
        table.add_row(escape(site), f"{sum(sites[site].values()):.2f}", words)
    if len(order) > _MOST_SITES:
        table.add_row(f"and {len(order) - _MOST_SITES} more", "", "")
    return table


def _by_component(components: dict[str, dict[str, float]]) -> Table:
    table = _table("component", "seconds", _MOST)
    for component in sorted(components, key=lambda name: -sum(components[name].values())):
        hooks = sorted(components[component].items(), key=lambda item: -item[1])[:3]
        words = ", ".join(f"{name} {seconds:.2f}" for name, seconds in hooks)
        table.add_row(component, f"{sum(components[component].values()):.2f}", words)
    return table


def _remarks(profile: dict[str, Any], folder: Path) -> list[str]:
    lines = []
    if profile["processes"] > 1:
        lines.append("beside: in other threads and processes, at the same time as what is above.")
    if profile["dropped"]:
        lines.append(f"{profile['dropped']} spans are in the tables and not in the trace, which has a limit.")
    lines.append(f"Every span: {folder / TRACE}, to be opened with https://ui.perfetto.dev.")
    return lines
