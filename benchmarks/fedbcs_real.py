"""FedBCS, its ablations and the methods it is compared with, on a real federation of four centres.

    POLYCLINIC_REAL_DATA=folder python benchmarks/fedbcs_real.py --jobs 2      # writes benchmarks/fedbcs_real.md

The folder holds `retina_vessel`: retinal images of DRIVE, STARE, CHASE_DB1 and HRF with vessel masks, one folder a
centre, split 60/20/20 by image. An interrupted run goes on when it is started again.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import mean

import polyclinic
from polyclinic.files import read_json
from polyclinic.recipe_files import load_recipe
from polyclinic.runs.plan import plan_grid

RECIPE = Path(__file__).with_name("fedbcs_retina.toml")
SEEDS = (0, 1, 2)
METHODS = (
    "fedavg", "fedbcs", "fedbcs-fsr", "fedbcs-cdpa", "fedprox", "moon", "fedproto", "harmofl", "fpl", "fedcontrast",
    "fedplvm", "feduv", "fedbcs(tau=0.005)",
)  # fmt: skip


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/fedbcs_real"))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    if not data:
        parser.error("set POLYCLINIC_REAL_DATA to the folder that holds retina_vessel")
    recipe = load_recipe(RECIPE, [f"federation={Path(data) / 'retina_vessel'}"])
    table = polyclinic.compare(recipe, METHODS, out=arguments.out, seeds=SEEDS, jobs=arguments.jobs)
    cells = plan_grid(recipe, METHODS, SEEDS, arguments.out).cells
    folders = {m: [cell.folder for cell in cells if cell.method == m] for m in METHODS}
    rounds = recipe.training.rounds
    numbers = tuple(round(rounds * share) for share in (0.5, 0.67, 0.83, 1))
    lines = [
        "# FedBCS and the prototype family on a real federation",
        "",
        "Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/fedbcs_real.py --jobs 2` with the recipe",
        "[fedbcs_retina.toml](fedbcs_retina.toml): vessels in retinal images of four centres (DRIVE, STARE, CHASE_DB1,",
        f"HRF), 78 training images at 96x96, {rounds} rounds of one local epoch, the same for all methods; published",
        "defaults of every method; the model of the best validation round is tested.",
        "",
        table.to_markdown(),
        "## What components share, a site and round (Table 3 of the paper)",
        "",
        "| method | prototypes | bytes beside the weights | seconds a round |",
        "|---|---:|---:|---:|",
    ]
    for method in METHODS:
        seconds = mean(mean(e["seconds"]["training"] for e in events(f)) for f in folders[method])
        lines.append(f"| {method} | {' | '.join(shared(folders[method][0]))} | {seconds:.1f} |")
    lines += [
        "",
        "Seconds are those of a machine with other work on it: a hint, no measurement.",
        "",
        "## Is it trained out? Mean validation Dice in % after so many rounds",
        "",
        f"| method | {' | '.join(map(str, numbers))} |",
        f"|---|{'---:|' * len(numbers)}",
        *(f"| {method} | {curve(folders[method], numbers)} |" for method in METHODS),
    ]
    notes = Path(__file__).with_name("fedbcs_real_notes.md")
    text = "\n".join(lines) + "\n" + (f"\n{notes.read_text()}" if notes.exists() else "")
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
