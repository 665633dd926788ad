"""Which training defaults pay: activations, classes of the Dice loss and deep supervision, on validation data.

    POLYCLINIC_REAL_DATA=folder python benchmarks/real/training_defaults.py --jobs 2

writes benchmarks/real/training_defaults.md. FedAvg on patches at native resolution, three seeds, every federation of
the folder. Test data choose nothing: the tables hold the validation Dice of the last round and of the best one. An
interrupted run goes on when it is started again, on any machine, from the records. `--federations` and `--variants`
choose what is run now; the page holds all that is finished.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from records import keep, restore

import polyclinic
from polyclinic.core.files import read_json, write_text
from polyclinic.recipe.files import load_recipe
from polyclinic.report.tables import markdown_table

HERE = Path(__file__).parent
NAME = Path(__file__).stem
SEEDS = (0, 1, 2)
_PICTURES = {"data.patch": (96, 96), "training.batch_size": 6}
# Where a structure is, only the whole slice tells: on patches of 96 x 96 FedAvg had a validation Dice of 0.19 for the
# left ventricle and 0.45 for glioma after as many rounds.
_SLICES = {"data.size": (192, 192), "training.batch_size": 2}
_VOLUMES = {"network.anisotropic": "auto", "training.batch_size": 2, "data.intensity": "z-score"}
# At the resolution of the files.
FEDERATIONS: dict[str, dict[str, Any]] = {
    "retina_vessel": _PICTURES,
    "nuclei_xmod": _PICTURES,
    "brain_lgg": _SLICES,
    "cardiac_lv": _SLICES,
    "brain_lgg3d": _VOLUMES | {"data.patch": (32, 32, 16)},
    "cardiac3d": _VOLUMES | {"data.patch": (48, 48, 8)},
    "hippocampus3d": _VOLUMES | {"data.patch": (32, 32, 32)},
    "prostate3d": _VOLUMES | {"data.patch": (48, 48, 16)},
}
# All keys everywhere: the defaults of the project may change, these rows may not.
_BEFORE = {
    "network.activation": "relu",
    "network.last_activation": "same",
    "network.deep_supervision": "false",
    "training.dice_classes": "all",
    "training.warmup": "0",
}
_LEAKY, _FOREGROUND = {"network.activation": "leaky-relu"}, {"training.dice_classes": "foreground"}
_LAST_LEAKY, _LINEAR = {"network.last_activation": "leaky-relu"}, {"network.last_activation": "none"}
VARIANTS: dict[str, dict[str, str]] = {
    "relu, Dice over all": _BEFORE,
    "leaky + foreground": _BEFORE | _LEAKY | _FOREGROUND,
    "last leaky + foreground": _BEFORE | _LAST_LEAKY | _FOREGROUND,
    "last none + foreground": _BEFORE | _LINEAR | _FOREGROUND,
    "last leaky": _BEFORE | _LAST_LEAKY,
    "foreground": _BEFORE | _FOREGROUND,
    "last leaky + deep supervision": _BEFORE | _LAST_LEAKY | {"network.deep_supervision": "true"},
    "last leaky + warm-up of 3": _BEFORE | _LAST_LEAKY | {"training.warmup": "3"},
    "last leaky + prior 0.01": _BEFORE | _LAST_LEAKY | {"network.prior_bias": "0.01"},
    "last leaky, middle of the slice": _BEFORE | _LAST_LEAKY,
}
# As much of the middle as holds nearly all structures, and as many pixels at a step as two whole slices, or fewer.
MIDDLE: dict[str, dict[str, Any]] = {
    "cardiac_lv": {"data.crop": (128, 128), "data.size": (128, 128), "training.batch_size": 4},
    "brain_lgg": {"data.crop": (144, 144), "data.size": (144, 144), "training.batch_size": 3},
}


@dataclass(frozen=True)
class Outcome:
    """One run, by its record: validation Dice in the last and in the best round, and how long it found nothing."""

    last: float
    best: float
    stuck: int
    steps: int

    @classmethod
    def of(cls, folder: Path) -> Outcome:
        lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        dice = [value for line in lines if (value := json.loads(line)["validation"]["dice"]) is not None]
        summary = read_json(folder / "summary.json")
        stuck = max((part["longest"] for part in summary.get("stuck", {}).values()), default=0)
        return cls(100 * dice[-1], 100 * max(dice), stuck, summary["steps"])


def settings(federation: str, variant: str) -> dict[str, Any] | None:
    """What a row changes in the recipe; ``None`` where a federation has no such row."""
    table = FEDERATIONS[federation] | VARIANTS[variant]
    if not variant.endswith("middle of the slice"):
        return table
    return table | MIDDLE[federation] if federation in MIDDLE else None


def folder_of(out: Path, federation: str, variant: str) -> Path:
    return out / federation / variant.replace(" ", "").replace(",", "-")


def train(data: Path, federation: str, variant: str, out: Path, jobs: int) -> None:
    """Run what is missing of one row."""
    changes = settings(federation, variant)
    if changes is None:
        return
    table = {"federation": data / federation, **changes}
    overrides = [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in table.items()]
    recipe = load_recipe(HERE / "recipes" / f"{NAME}.toml", overrides)
    polyclinic.compare(recipe, [recipe.method], out=folder_of(out, federation, variant), seeds=SEEDS, jobs=jobs)


def finished(out: Path, federation: str) -> dict[str, list[Outcome]]:
    """The rows of a federation whose seeds are all done."""
    rows = {}
    for variant in VARIANTS:
        runs = sorted(folder_of(out, federation, variant).glob("*/summary.json"))
        if len(runs) == len(SEEDS):
            rows[variant] = [Outcome.of(path.parent) for path in runs]
    return rows


def spread(values: Sequence[float], sign: str = "") -> str:
    return f"{mean(values):{sign}.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def section(federation: str, rows: Mapping[str, list[Outcome]]) -> list[str]:
    """The table of a federation; differences are those of the last round, paired by seed."""
    reference = next(iter(rows.values()))
    lines = [["variant", "last round", "best round", "against the first", "longest at background", "steps"]]
    for variant, found in rows.items():
        gains = [own.last - first.last for own, first in zip(found, reference, strict=True)]
        cells = [spread([run.last for run in found]), spread([run.best for run in found])]
        cells += ["" if found is reference else spread(gains, "+"), str(max(run.stuck for run in found))]
        lines.append([variant, *cells, str(max(run.steps for run in found))])
    return [f"## {federation}", "", markdown_table(lines), ""]


def overall(tables: Mapping[str, Mapping[str, list[Outcome]]]) -> list[str]:
    """The last round of every federation, mean over seeds, and the mean over federations that a variant has."""
    lines = [["variant", *tables, "mean"]]
    for variant in VARIANTS:
        values = [mean(run.last for run in rows[variant]) if variant in rows else None for rows in tables.values()]
        known = [value for value in values if value is not None]
        average = f"{mean(known):.1f}" if len(known) == len(values) else ""
        if known:
            lines.append([variant, *("" if value is None else f"{value:.1f}" for value in values), average])
    return ["## All federations, last round", "", markdown_table(lines), ""]


def page(out: Path) -> str:
    lines = [
        "# Training defaults on real federations",
        "",
        f"Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/real/{NAME}.py` with",
        f"[{NAME}.toml](recipes/{NAME}.toml). FedAvg; mean validation Dice over sites in %, mean ± deviation over",
        "seeds; `longest at background` is how many validated rounds in a row found nothing, at the worst seed, from",
        f"`training.stuck_after` on. The runs without weights: [records/{NAME}.tar.xz](records/{NAME}.tar.xz).",
        "",
    ]
    notes = HERE / f"{NAME}_notes.md"
    if notes.exists():
        lines += [notes.read_text(encoding="utf-8").strip(), ""]
    tables = {federation: rows for federation in FEDERATIONS if (rows := finished(out, federation))}
    for federation, rows in tables.items():
        lines += section(federation, rows)
    return "\n".join([*lines, *overall(tables)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "real")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--federations", nargs="*", choices=FEDERATIONS, default=list(FEDERATIONS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    chosen = parser.parse_args()
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    if not data and chosen.federations:
        parser.error("set POLYCLINIC_REAL_DATA to the folder that holds the federations")
    out, archive = chosen.out / NAME, HERE / "records" / f"{NAME}.tar.xz"
    restore(archive, out, Path(data or "."))
    for federation in chosen.federations:
        for variant in chosen.variants:
            train(Path(data or "."), federation, variant, out, chosen.jobs)
            keep(out, archive)
            print(f"{federation}: {variant} is done", flush=True)
    keep(out, archive)  # also of rows that an interruption left half done
    write_text(HERE / f"{NAME}.md", page(out))
    print(page(out))


if __name__ == "__main__":
    main()
