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
    table = Table("method", "components", "paper", title="Methods", title_justify="left")
    for row in listed:
        table.add_row(row["method"], row["expression"], f"{row['paper']} {row['year'] or ''}".strip() or row["summary"])
    console.print(table)
    table = Table("component", "level", "settings", "paper", title="Components", title_justify="left")
    for row in parts:
        settings = ", ".join(f"{s['name']}={s['default']}" for s in row["settings"]) or "-"
        table.add_row(row["component"], row["level"], settings, row["paper"] or "-")
    console.print(table)
    console.print("Combine them: fedavg+proximal(mu=0.1) adds, fedprox-proximal drops. More: polyclinic explain METHOD")
