"""Tables of methods on a real federation, shared by the scripts `*_real.py`."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import polyclinic
from polyclinic.core.files import read_json
from polyclinic.recipe import Recipe
from polyclinic.recipe.files import load_recipe
from polyclinic.report.overview import overview_rows
from polyclinic.report.tables import comparison_of, markdown_table
from polyclinic.runs.grid_plan import plan_grid

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Table:
    """Methods compared with the recipe of that name beside this file; the first one is the reference."""

    name: str
    what: str
    methods: tuple[str, ...]

    def recipe(self, data: Path) -> Recipe:
        path = HERE / f"{self.name}.toml"
        return load_recipe(path, [f"federation={data / Path(load_recipe(path).federation).name}"])


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def curve(folders: list[Path], numbers: list[int]) -> str:
    """Mean validation Dice over sites, parts of the protocol and seeds after some rounds."""
    every = [event for folder in folders for event in events(folder)]
    return " | ".join(
        f"{100 * mean(e['validation']['dice'] for e in every if e['round'] == n - 1):.2f}" for n in numbers
    )


def shared(folder: Path) -> tuple[str, str]:
    """Prototypes and bytes that components share, a site and round."""
    amounts = read_json(folder / "summary.json")["shared_up"]
    sites = [amount for by_site in amounts.values() for amount in by_site.values()]
    counts = [amount["prototypes"] for amount in sites if "prototypes" in amount]
    size = sum(mean(a["bytes"] for a in by_site.values()) for by_site in amounts.values())
    return (f"{mean(counts):.2f}" if counts else "-"), f"{size:.0f}"


def overview(grid: Path, recipe: Recipe) -> list[str]:
    """The averages of all metrics, if there are several."""
    metrics = recipe.evaluation.metrics
    if len(metrics) < 2:
        return []
    rows = overview_rows([comparison_of(grid, metric) for metric in metrics])
    return [markdown_table(rows), "", "Average over the columns above; overlaps in %, distances in pixels.", ""]


def section(table: Table, data: Path, out: Path, jobs: int) -> list[str]:
    """Run what is missing and write the table, with what is shared and the curves below it."""
    recipe = table.recipe(data)
    compared = polyclinic.compare(recipe, table.methods, out=out, seeds=SEEDS, jobs=jobs)
    cells = plan_grid(recipe, table.methods, SEEDS, out).cells
    folders = {m: [cell.folder for cell in cells if cell.method == m] for m in table.methods}
    rounds = recipe.training.rounds
    # A round that validated, near each of these shares of all.
    every = recipe.training.validate_every
    numbers = [every * max(1, round(rounds * share / every)) for share in (0.5, 0.67, 0.83, 1)]
    lines = [
        f"## {table.what}",
        "",
        f"Recipe: [{table.name}.toml]({table.name}.toml), {rounds} rounds of one local epoch.",
        "",
        compared.to_markdown(),
        *overview(out, recipe),
        "Prototypes and bytes beside the weights are those that a site sends in a round. The seconds of a round come",
        "from a machine with other work on it: a hint, no measurement. The last columns are the mean validation Dice",
        "after so many rounds: is it trained out?",
        "",
        f"| method | prototypes | bytes | seconds | {' | '.join(f'round {n}' for n in numbers)} |",
        f"|---|---:|---:|---:|{'---:|' * len(numbers)}",
    ]
    for method, own in folders.items():
        seconds = mean(mean(e["seconds"]["training"] for e in events(f)) for f in own)
        lines.append(f"| {method} | {' | '.join(shared(own[0]))} | {seconds:.1f} | {curve(own, numbers)} |")
    return [*lines, ""]


def report(name: str, description: str, tables: tuple[Table, ...], head: list[str]) -> None:
    """The script `name.py`: all tables and the notes of `name_notes.md` into `name.md`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / name)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    if not data:
        parser.error("set POLYCLINIC_REAL_DATA to the folder that holds the federations")
    made = f"Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/{name}.py --jobs 2`."
    lines = [f"# {head[0]}", "", " ".join([made, *head[1:]]), ""]
    for table in tables:
        lines += section(table, Path(data), arguments.out / table.name, arguments.jobs)
    notes = HERE / f"{name}_notes.md"
    text = "\n".join(lines) + ("\n" + notes.read_text() if notes.exists() else "")
    (HERE / f"{name}.md").write_text(text)
    print(text)
