"""FedAvg between its references on the embedded nuclei federation: how much of its gap is shift, how much training.

Central training must beat FedAvg, and FedAvg must beat what the sites' own models reach on the other sites' images.
The same FedAvg on the same training images, dealt anew to the sites, has no shift between sites; what it lacks of
central training is the price of averaging, and what it is above FedAvg is the price of the shift.

    python benchmarks/references.py --jobs 2      # writes benchmarks/references.md
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import polyclinic
from polyclinic.core.files import read_json
from polyclinic.data.phantoms.demo_files import demo_folder

SEEDS = (0, 1, 2)
SMALLEST = "hospital-d"
LONG = 60


def deal_anew(source: Path, target: Path, seed: int = 0) -> Path:
    """Copy a federation, its training images dealt to the sites by chance; sizes of sites and all other images stay."""
    if target.exists():
        return target
    with (source / "manifest.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    training = [row for row in rows if row["split"] == "train"]
    homes = [row["site"] for row in training]
    random.Random(seed).shuffle(homes)
    partial = target.with_suffix(".part")
    shutil.rmtree(partial, ignore_errors=True)
    moved: list[dict[str, str]] = []
    for row, home in [*zip(training, homes, strict=True), *((r, r["site"]) for r in rows if r["split"] != "train")]:
        name = f"{row['site']}-{row['image']}"
        for kind in ("images", "labels"):
            (partial / home / kind).mkdir(parents=True, exist_ok=True)
            shutil.copy(source / row["site"] / kind / f"{row['image']}.png", partial / home / kind / f"{name}.png")
        moved.append({**row, "site": home, "image": name, "case": name})
    shutil.copy(source / "federation.toml", partial)
    with (partial / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["site", "image", "case", "split"])
        writer.writeheader()
        writer.writerows(moved)
    partial.rename(target)
    return target


def summary_of(out: Path, method: str, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = read_json(out / f"{method}-seed{seed}" / "summary.json")
    return found


def average(summary: dict[str, Any]) -> float:
    return 100 * float(summary["average"]["dice"])


def at_smallest(summary: dict[str, Any]) -> float:
    return 100 * float(summary["sites"][SMALLEST]["dice"])


def away(summary: dict[str, Any]) -> float:
    """Dice of each site's model on the other sites' test images."""
    matrix = summary["transfer"]["all"]
    return 100 * mean(value for model, row in matrix.items() for site, value in row.items() if site != model)


def line(name: str, values: list[float]) -> str:
    return f"| {name} | {' | '.join(f'{v:.2f}' for v in values)} | {mean(values):.2f} ± {stdev(values):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/references"))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)

    def train(folder: str, methods: tuple[str, ...], *overrides: str) -> list[list[dict[str, Any]]]:
        polyclinic.compare(
            "demo-nuclei", methods, out=out / folder, seeds=SEEDS, jobs=arguments.jobs,
            overrides=["evaluation.metrics=['dice']", *overrides],
        )  # fmt: skip
        return [[summary_of(out / folder, method, seed) for seed in SEEDS] for method in methods]

    dealt, longer = f"federation={deal_anew(demo_folder('nuclei'), out / 'dealt')}", f"training.rounds={LONG}"
    central, fedavg, local = train("references", ("central", "fedavg", "local"), "protocol.transfer=true")
    rows = {"central: all images in one place": central, "FedAvg": fedavg}
    [rows["FedAvg, training images dealt anew"]] = train("dealt-anew", ("fedavg",), dealt)
    [rows[f"FedAvg, {LONG} rounds"]] = train("longer", ("fedavg",), longer)
    [rows[f"FedAvg, training images dealt anew, {LONG} rounds"]] = train("dealt-longer", ("fedavg",), dealt, longer)
    rows["local models, each on its own site's images"] = local
    ordered = all(average(c) > average(f) > away(own) for c, f, own in zip(central, fedavg, local, strict=True))
    head = [f"| | {' | '.join(f'seed {seed}' for seed in SEEDS)} | mean ± sd |", "|---|---:|---:|---:|---:|"]
    table = [
        "# FedAvg between its references",
        "",
        "Made by `python benchmarks/references.py` with the shipped recipe `demo-nuclei` (four synthetic centres, 20",
        "rounds). Test Dice in %; the model is chosen on validation data. *Dealt anew*: every site has as many",
        "training images as before, drawn from those of all sites, so that sites no longer differ; the test images are",
        "the same.",
        "",
        "## Mean over sites",
        "",
        *head,
        *(line(name, [average(run) for run in runs]) for name, runs in rows.items()),
        line("local models, on the other sites' images", [away(run) for run in local]),
        "",
        f"central > FedAvg > local elsewhere, for every seed: **{'yes' if ordered else 'NO'}**.",
        "",
        f"## At {SMALLEST}, the smallest site with the most different stain",
        "",
        *head,
        *(line(name, [at_smallest(run) for run in runs]) for name, runs in rows.items()),
        "",
        "## Shift or training",
        "",
        *shares(rows),
        "",
    ]
    Path(__file__).with_suffix(".md").write_text("\n".join(table))
    print("\n".join(table))


def shares(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What FedAvg lacks of central training, in two parts: above and below FedAvg without shift."""
    lines = [
        "| | rounds | FedAvg below central | of it shift | of it averaging and too few rounds |",
        "|---|---:|---:|---:|---:|",
    ]
    for where, score in (("mean over sites", average), (SMALLEST, at_smallest)):
        central = mean(score(run) for run in rows["central: all images in one place"])
        for rounds, suffix in ((20, ""), (LONG, f", {LONG} rounds")):
            shifted = mean(score(run) for run in rows[f"FedAvg{suffix}"])
            dealt = mean(score(run) for run in rows[f"FedAvg, training images dealt anew{suffix}"])
            lines.append(
                f"| {where} | {rounds} | {central - shifted:.2f} | {dealt - shifted:.2f} | {central - dealt:.2f} |"
            )
    return [
        *lines, "",
        "Points of Dice, means over seeds; central training has 20 rounds in all rows, with the steps of all sites.",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
