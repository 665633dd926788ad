"""``polyclinic methods``."""

from __future__ import annotations

import json

import typer

from polyclinic.cli.options import JsonOption


def methods(json_output: JsonOption = False) -> None:
    """List all methods and components with paper, level and settings."""
    from rich.console import Console
    from rich.table import Table

    from polyclinic.report.methods import component_rows, method_rows

    listed, parts = method_rows(), component_rows()
    if json_output:
        typer.echo(json.dumps({"methods": listed, "components": parts}, indent=2))
        return
    console = Console()
    table = Table("method", "what it does", title="Methods", title_justify="left")
    table.add_column("components", no_wrap=True)
    for row in listed:
        # Authors and venue: the title has its place in `polyclinic explain` and in the documentation.
        cited = row["paper"].split(", ")
        paper = f"\n[dim]{cited[0]}, {cited[-1]} {row['year'] or ''}".rstrip() + "[/dim]" if row["paper"] else ""
        table.add_row(row["method"], row["summary"] + paper, row["expression"].replace(" + ", "\n+ "))
    console.print(table)
    table = Table(title="Components", title_justify="left")
    table.add_column("component", no_wrap=True)
    # Narrow enough that the settings, whose words are long, have room at 80 columns.
    table.add_column("level, paper", overflow="fold", max_width=22)
    table.add_column("settings", overflow="fold", min_width=24)
    for row in parts:
        settings = ", ".join(f"{s['name']}={s['default']}" for s in row["settings"]) or "-"
        paper = f"\n[dim]{row['paper']}[/dim]" if row["paper"] else ""
        table.add_row(row["component"], row["level"] + paper, settings)
    console.print(table)
    console.print("Combine them: fedavg+proximal(mu=0.1) adds, fedprox-proximal drops. More: polyclinic explain METHOD")
