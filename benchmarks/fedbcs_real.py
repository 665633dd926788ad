"""FedBCS, its ablations and the methods it is compared with, on real federations.

    POLYCLINIC_REAL_DATA=folder python benchmarks/fedbcs_real.py --jobs 2      # writes benchmarks/fedbcs_real.md

The folder holds `retina_vessel` (retinal images of DRIVE, STARE, CHASE_DB1 and HRF with vessel masks) and `brain_lgg`
(glioma, slices of three MR sequences from four hospitals), one folder a centre, split 60/20/20 by image and by patient.
An interrupted run goes on when it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import polyclinic
from polyclinic.files import read_json
from polyclinic.recipe import Recipe
from polyclinic.recipe_files import load_recipe
from polyclinic.runs.plan import plan_grid

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
ABLATION = ("fedavg", "fedbcs", "fedbcs-fsr", "fedbcs-cdpa")
METHODS = (*ABLATION, "moon", "fedproto", "harmofl", "fpl", "fedcontrast", "fedplvm", "feduv")


@dataclass(frozen=True)
class Table:
    name: str
    what: str
    methods: tuple[str, ...]

    def recipe(self, data: Path) -> Recipe:
        path = HERE / f"{self.name}.toml"
        return load_recipe(path, [f"federation={data / Path(load_recipe(path).federation).name}"])


TABLES = (
    Table("fedbcs_retina", "Vessels in retinal images, four centres, 77 training images of 96x96", METHODS),
    Table("fedbcs_brain", "Glioma in MR slices, four hospitals, 219 training slices of 64x64", ABLATION),
)


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def curve(folders: list[Path], numbers: tuple[int, ...]) -> str:
    """Mean validation Dice over sites and seeds after some rounds."""
    runs = [events(folder) for folder in folders]
    return " | ".join(f"{100 * mean(run[n - 1]['validation']['dice'] for run in runs):.2f}" for n in numbers)


def shared(folder: Path) -> tuple[str, str]:
    """Prototypes and bytes that components share, a site and round."""
    amounts = read_json(folder / "summary.json")["shared_up"]
    sites = [amount for by_site in amounts.values() for amount in by_site.values()]
    counts = [amount["prototypes"] for amount in sites if "prototypes" in amount]
    size = sum(mean(a["bytes"] for a in by_site.values()) for by_site in amounts.values())
    return (f"{mean(counts):.2f}" if counts else "-"), f"{size:.0f}"


def section(table: Table, data: Path, out: Path, jobs: int) -> list[str]:
    recipe = table.recipe(data)
    compared = polyclinic.compare(recipe, table.methods, out=out, seeds=SEEDS, jobs=jobs)
    cells = plan_grid(recipe, table.methods, SEEDS, out).cells
    folders = {m: [cell.folder for cell in cells if cell.method == m] for m in table.methods}
    rounds = recipe.training.rounds
    numbers = tuple(round(rounds * share) for share in (0.5, 0.67, 0.83, 1))
    lines = [
        f"## {table.what}",
        "",
        f"Recipe: [{table.name}.toml]({table.name}.toml), {rounds} rounds of one local epoch.",
        "",
        compared.to_markdown(),
        "Prototypes and bytes beside the weights are those that a site sends in a round (Table 3 of the paper). The",
        "seconds of a round come from a machine with other work on it: a hint, no measurement. The last columns are",
        "the mean validation Dice after so many rounds: is it trained out?",
        "",
        f"| method | prototypes | bytes | seconds | {' | '.join(f'round {n}' for n in numbers)} |",
        f"|---|---:|---:|---:|{'---:|' * len(numbers)}",
    ]
    for method, own in folders.items():
        seconds = mean(mean(e["seconds"]["training"] for e in events(f)) for f in own)
        lines.append(f"| {method} | {' | '.join(shared(own[0]))} | {seconds:.1f} | {curve(own, numbers)} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/fedbcs_real"))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    if not data:
        parser.error("set POLYCLINIC_REAL_DATA to the folder that holds retina_vessel and brain_lgg")
    lines = [
        "# FedBCS and the prototype family on real federations",
        "",
        "Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/fedbcs_real.py --jobs 2`. Learning rate and rounds are",
        "the same for all methods of a table. Every method has the defaults of its page in docs/methods/, published",
        "ones where there are any; `fedcontrast` is a re-implementation from an abstract. Gradients are clipped at",
        "norm 5 for all. The model of the best validation round is tested.",
        "",
    ]
    for table in TABLES:
        lines += section(table, Path(data), arguments.out / table.name, arguments.jobs)
    notes = HERE / "fedbcs_real_notes.md"
    text = "\n".join(lines) + ("\n" + notes.read_text() if notes.exists() else "")
    (HERE / "fedbcs_real.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
