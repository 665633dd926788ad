"""FedAvg between its references on the embedded nuclei federation, and what its weakest site lacks.

Central training must beat FedAvg, and FedAvg must beat what the sites' own models reach on the other sites' images.
With three times the rounds FedAvg gains what was lack of training; what still lies between it and all images in one
place is the sites' difference.

    python benchmarks/references.py --jobs 2      # writes benchmarks/references.md
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

import polyclinic
from polyclinic.core.files import read_json

SEEDS = (0, 1, 2)
WEAKEST = "hospital-d"
METHODS = {20: ("central", "fedavg", "local"), 60: ("central", "fedavg")}  # by rounds
OVERRIDES = ("protocol.transfer=true", "evaluation.metrics=['dice']")


def dice(folder: Path, method: str, seed: int) -> tuple[float, float, float]:
    """Average Dice on own test images, of each site's model on the other sites' test images, and the weakest site's."""
    summary = read_json(folder / f"{method}-seed{seed}" / "summary.json")
    matrix = summary.get("transfer", {}).get("all", {})
    away = [value for model, row in matrix.items() for site, value in row.items() if site != model]
    own, weakest = summary["average"]["dice"], summary["sites"][WEAKEST]["dice"]
    return 100 * own, 100 * mean(away) if away else float("nan"), 100 * weakest


def line(name: str, values: list[float]) -> str:
    return f"| {name} | {' | '.join(f'{v:.2f}' for v in values)} | {mean(values):.2f} ± {stdev(values):.2f} |"


def table(scores: dict[str, list[tuple[float, float, float]]], rounds: int) -> list[str]:
    """The references after so many rounds."""
    central, fedavg = ([own for own, _, _ in scores[m]] for m in ("central", "fedavg"))
    lines = [
        f"## {rounds} rounds",
        "",
        f"| | {' | '.join(f'seed {seed}' for seed in SEEDS)} | mean ± sd |",
        "|---|---:|---:|---:|---:|",
        line("central: all images in one place", central),
        line("fedavg", fedavg),
        line(f"{WEAKEST}: central", [weakest for _, _, weakest in scores["central"]]),
        line(f"{WEAKEST}: fedavg", [weakest for _, _, weakest in scores["fedavg"]]),
    ]
    if "local" not in scores:
        return [*lines, ""]
    local_away = [away for _, away, _ in scores["local"]]
    holds = all(c > f > a for c, f, a in zip(central, fedavg, local_away, strict=True))
    return [
        *lines,
        line(f"{WEAKEST}: its own model", [weakest for _, _, weakest in scores["local"]]),
        line("local models, on the other sites' images", local_away),
        line("local models, each on its own site's images", [own for own, _, _ in scores["local"]]),
        "",
        f"central > fedavg > local elsewhere, for every seed: **{'yes' if holds else 'NO'}**.",
        "",
    ]


def gap(scores: dict[int, dict[str, list[tuple[float, float, float]]]]) -> str:
    """What lies between FedAvg and all images in one place at the weakest site, in words."""
    at = {r: {m: mean(weakest for _, _, weakest in own) for m, own in scores[r].items()} for r in METHODS}
    short, long = METHODS
    whole, trained = at[long]["central"] - at[short]["fedavg"], at[long]["fedavg"] - at[short]["fedavg"]
    return (
        f"At {WEAKEST}, the smallest centre with the most different stain, FedAvg has {at[short]['fedavg']:.1f} after\n"
        f"{short} rounds, and all images in one place {at[long]['central']:.1f} after {long}. Of these {whole:.1f}\n"
        f"points FedAvg gains {trained:.1f} by training {long} rounds itself: that part is lack of training. The\n"
        f"other {whole - trained:.1f} are what one averaged model loses because the centres differ."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/references"))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    lines = [
        "# FedAvg between its references",
        "",
        "Made by `python benchmarks/references.py` with the shipped recipe `demo-nuclei` (four synthetic centres).",
        "Test Dice in %, mean over sites; the model is chosen on validation data.",
        "",
    ]
    scores = {}
    for rounds, methods in METHODS.items():
        out = arguments.out / f"rounds-{rounds}"
        overrides = [*OVERRIDES, f"training.rounds={rounds}"]
        polyclinic.compare("demo-nuclei", methods, out=out, seeds=SEEDS, overrides=overrides, jobs=arguments.jobs)
        scores[rounds] = {m: [dice(out, m, seed) for seed in SEEDS] for m in methods}
        lines += table(scores[rounds], rounds)
    lines += [gap(scores), "", "On its own images a local model beats FedAvg here.", ""]
    Path(__file__).with_suffix(".md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
