"""FSF3A's Tables 1, 3 and 4 in small: its losses and aggregators on volumes of four hospitals.

    POLYCLINIC_REAL_DATA=folder python benchmarks/fsf3a_real.py --jobs 2      # writes benchmarks/fsf3a_real.md

The folder holds `brain_lgg3d`: glioma in FLAIR volumes of 62 patients of four hospitals, split 60/20/20 by patient. All
tables are of one grid, so that a method that stands in two of them ran once. An interrupted run goes on when it is
started again.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from statistics import mean

from real_tables import HERE, SEEDS, Table, overview

import polyclinic
from polyclinic.core.files import read_json
from polyclinic.report.tables import Comparison, markdown_table
from polyclinic.runs.grid_plan import plan_grid

LOSSES = ("feddice", "fedinfonce", "fedsimclr", "fedfocaltversky", "fedlocalcl", "fedswav", "fsf3a")
UNIFORM = "fsf3a(weighting=uniform)"
AGGREGATORS = (UNIFORM, f"{UNIFORM}+proximal", f"{UNIFORM}+scaffold", "fsf3a+fednova", "fsf3a+fedma", "fsf3a")
ABLATION = ("feddice", UNIFORM, "fsf3a")
REFERENCES = ("fedavg", "local", "central")
TABLE = Table("fsf3a_brain", "Glioma in FLAIR volumes", tuple(dict.fromkeys((*REFERENCES, *LOSSES, *AGGREGATORS))))
TABLES = {
    "Table 1: losses, all under ASWA": LOSSES,
    "Table 3: aggregators, all with CLSL": AGGREGATORS,
    "Table 4: ASWA alone (Dice loss), CLSL alone (uniform mean), both": ABLATION,
    "References: Dice and cross-entropy under FedAvg, local models at home, all volumes in one place": REFERENCES,
}


def after_rounds(folders: dict[str, list[Path]]) -> str:
    """Test Dice, averaged over hospitals and seeds, after the rounds of the recipe."""
    tests = {m: [read_json(f / "summary.json")["at_rounds"] for f in own] for m, own in folders.items()}
    numbers = list(next(iter(tests.values()))[0])
    rows = [["method", *(f"round {n}" for n in numbers)]]
    for method, own in tests.items():
        rows.append([method, *(f"{100 * mean(test[n]['average']['dice'] for test in own):.2f}" for n in numbers)])
    return markdown_table(rows)


def only(compared: Comparison, methods: tuple[str, ...]) -> Comparison:
    """A part of the table, without statistics: those are for the methods of the whole."""
    values = {m: compared.values[m] for m in methods}
    return replace(compared, methods=methods, values=values, reference="", p_values={}, words=())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "fsf3a_real")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    if not data:
        parser.error("set POLYCLINIC_REAL_DATA to the folder that holds the federations")
    recipe = TABLE.recipe(Path(data))
    compared = polyclinic.compare(recipe, TABLE.methods, out=arguments.out, seeds=SEEDS, jobs=arguments.jobs)
    cells = plan_grid(recipe, TABLE.methods, SEEDS, arguments.out).cells
    folders = {m: [cell.folder for cell in cells if cell.method == m] for m in TABLE.methods}
    lines = [
        "# FSF3A, its losses and aggregators on volumes of four hospitals",
        "",
        "Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/fsf3a_real.py --jobs 2`. Glioma in FLAIR volumes",
        "(`brain_lgg3d`: 16, 16, 14 and 16 patients of four hospitals); recipe [fsf3a_brain.toml](fsf3a_brain.toml).",
        "Learning rate and rounds are the same for all methods, and every method has the defaults of its page in",
        "docs/reference/methods/. The model of the last round is tested.",
        "",
    ]
    for title, methods in TABLES.items():
        lines += [f"## {title}", "", only(compared, methods).to_markdown()]
    lines += ["## All metrics", "", *overview(arguments.out, recipe)]
    lines += ["## Test Dice after rounds", "", after_rounds(folders), ""]
    notes = HERE / "fsf3a_real_notes.md"
    text = "\n".join(lines) + ("\n" + notes.read_text() if notes.exists() else "")
    (HERE / "fsf3a_real.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
