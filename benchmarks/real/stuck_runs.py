"""Training that gets stuck at background, or loses a class: what the activation before the classifier does to it.

    POLYCLINIC_REAL_DATA=folder python benchmarks/real/stuck_runs.py --jobs 2

writes benchmarks/real/stuck_runs.md: a phantom with four pixels of structure (the one of
tests/federation/test_stuck.py), vessels in pictures made small, and two parts of the hippocampus. These are the cases
in which runs were seen to be stuck; training_defaults.py has all federations. Numbers are of validation data. An
interrupted run goes on when it is started again, on any machine, from the records.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from records import keep, restore
from training_defaults import Outcome, spread

import polyclinic
from polyclinic.core.files import write_text
from polyclinic.recipe.files import load_recipe
from polyclinic.report.tables import markdown_table

HERE = Path(__file__).parent
NAME = Path(__file__).stem
TESTS = HERE.parent.parent / "tests"
SEEDS = (0, 1, 2)
PHANTOM_SEEDS = range(8)
_BEFORE = {
    "network.activation": "relu", "network.last_activation": "same", "network.deep_supervision": "false",
    "training.dice_classes": "all", "training.warmup": "0",
}  # fmt: skip
VARIANTS: dict[str, dict[str, str]] = {
    "ReLU, Dice over all classes": _BEFORE,
    "leaky ReLU of slope 0.01 everywhere, Dice over foreground": _BEFORE
    | {"network.activation": "leaky-relu", "training.dice_classes": "foreground"},
    "leaky ReLU of slope 0.1": _BEFORE | {"network.last_activation": "leaky-relu"},
    "leaky ReLU of slope 0.1, Dice over foreground": _BEFORE
    | {"network.last_activation": "leaky-relu", "training.dice_classes": "foreground"},
    "none": _BEFORE | {"network.last_activation": "none"},
    "ReLU, deep supervision": _BEFORE | {"network.deep_supervision": "true"},
    "ReLU, warm-up of 3 rounds": _BEFORE | {"training.warmup": "3"},
    "ReLU, first bias for a prior of 0.01": _BEFORE | {"network.prior_bias": "0.01"},
}
_HIPPOCAMPUS = {
    "training.loss": "dice-ce", "training.rounds": 20, "training.validate_every": 5, "training.stuck_after": 1,
    "evaluation.rounds": [], "evaluation.metrics": ["dice"], "evaluation.training_images": False,
}  # fmt: skip
CASES: dict[str, tuple[str, str, Mapping[str, Any]]] = {
    "retina_vessel": ("Vessels in pictures of 96 x 96 pixels, 12 rounds", "stuck_runs", {}),
    "hippocampus3d": (
        "Two parts of the hippocampus, width 8, Dice and cross-entropy, 20 rounds",
        "fsf3a_hippocampus",
        _HIPPOCAMPUS,
    ),
}


def phantom() -> list[str]:
    """Validation Dice after eight rounds on the rare structure, a column a seed."""
    spec = importlib.util.spec_from_file_location("test_stuck", TESTS / "federation" / "test_stuck.py")
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(TESTS))
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    rows = [["before the classifier", *(f"seed {seed}" for seed in PHANTOM_SEEDS)]]
    for variant, changes in VARIANTS.items():
        network = {key.split(".")[1]: value for key, value in changes.items() if key.startswith("network.")}
        warmup = int(changes.get("training.warmup", 0))
        cells = []
        for seed in PHANTOM_SEEDS:
            with tempfile.TemporaryDirectory() as folder:
                events = tests.train_on_rare_structure(
                    Path(folder), seed, network, changes["training.dice_classes"], warmup
                )
            cells.append(f"{events[-1]['validation']['dice']:.2f}")
        rows.append([variant, *cells])
    return ["## A phantom: four pixels of structure in 48 x 48", "", markdown_table(rows), ""]


def folder_of(out: Path, case: str, variant: str) -> Path:
    return out / case / variant.replace(" ", "-").replace(",", "")


def train(data: Path, case: str, variant: str, out: Path, jobs: int | None) -> None:
    """Run what is missing of one row."""
    _, recipe, changes = CASES[case]
    overrides = [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in changes.items()]
    overrides += [f"{key}={value}" for key, value in VARIANTS[variant].items()]
    loaded = load_recipe(HERE / "recipes" / f"{recipe}.toml", [*overrides, f"federation={data / case}"])
    polyclinic.compare(loaded, ["fedavg"], out=folder_of(out, case, variant), seeds=SEEDS, jobs=jobs)


def section(case: str, out: Path) -> list[str]:
    """A table of the finished rows of a case."""
    rows = [["before the classifier", *(f"seed {seed}" for seed in SEEDS), "mean", "longest at background"]]
    for variant in VARIANTS:
        runs = sorted(folder_of(out, case, variant).glob("*/summary.json"))
        if len(runs) == len(SEEDS):
            found = [Outcome.of(path.parent) for path in runs]
            cells = [*(f"{run.last:.1f}" for run in found), spread([run.last for run in found])]
            rows.append([variant, *cells, str(max(run.stuck for run in found))])
    return [f"## {CASES[case][0]}", "", markdown_table(rows), ""] if len(rows) > 1 else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "real")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    data = os.environ.get("POLYCLINIC_REAL_DATA")
    if not data:
        parser.error("set POLYCLINIC_REAL_DATA to the folder that holds the federations")
    out, archive = options.out / NAME, HERE / "records" / f"{NAME}.tar.xz"
    restore(archive, out, Path(data))
    for case in CASES:
        for variant in VARIANTS:
            train(Path(data), case, variant, out, options.jobs)
            keep(out, archive)
    lines = [
        "# Runs that are stuck, and what frees them",
        "",
        f"Made by `POLYCLINIC_REAL_DATA=folder python benchmarks/real/{NAME}.py`. FedAvg; mean validation Dice over",
        "sites after the last round, in % but for the phantom. `longest at background`: validated rounds in a row that",
        "found nothing at any site, at the worst seed.",
        "[Why](../../docs/explanation/training.md#a-run-that-finds-nothing).",
        "",
        *phantom(),
        *(line for case in CASES for line in section(case, out)),
        f"The runs without weights: [records/{NAME}.tar.xz](records/{NAME}.tar.xz).",
        "",
    ]
    write_text(HERE / f"{NAME}.md", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
