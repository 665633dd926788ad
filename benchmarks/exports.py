"""Exported models against the run's own predictions: every demo federation, every method with parts in the network.

    python benchmarks/exports.py --scratch /tmp/exports [--federations tumour] [--methods fedavg] [--formats onnx]

Trains a small network for a few steps in each cell, exports it, and writes what the export's own check found to
``benchmarks/exports.md``. Cells that are in the scratch folder already are not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from polyclinic import run
from polyclinic.core.errors import PolyclinicError
from polyclinic.export.export_model import FORMATS, export_model

FEDERATIONS = {
    "nuclei": ("data.size=[64,64]",),
    "prostate": ("data.size=[48,56]", "data.intensity=percentile", "data.neighbours=1"),
    "tumour": ("data.size=auto", "data.patch=[16,24,16]", "data.intensity=z-score", "data.nonzero=true"),
    "pathology": ("data.size=[64,64]", "data.intensity=full-range"),
    "cardiac": ("data.size=[48,48]", "data.fit=pad-crop", "data.spacing=[2.0,2.0,10.0]"),
    "spine": ("data.size=[32,32]", "data.crop=[48,48]", "data.intensity=percentile"),
    "bladder": ("data.size=auto", "data.patch=[32,32]", "data.intensity=z-score"),
}
METHODS = {
    "fedavg": "", "fedbcs": "FSR", "pathfl": "AFA", "fedfa": "feature augmentation", "fedavg+lddg": "LDDG",
    "harmofl": "amplitude of frequency 0", "fedavg+amplitude_normalisation(window=0.3)": "amplitude window",
    "fedbn": "a site's own norm layers",
}  # fmt: skip
NETWORK = ("network.width=4", "network.depth=2", "training.rounds=1", "training.steps_per_epoch=2")
# Its classifier reads means near 0 at first: after two steps all masks were empty, which would prove nothing.
LONGER = {"fedavg+lddg": ("training.rounds=2", "training.steps_per_epoch=20", "training.lr=0.01")}
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "monai", "pytorch-ignite", "numpy")


def trained(federation: str, method: str, folder: Path) -> Path:
    """The folder of a small run, made once."""
    if not (folder / "summary.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        recipe = folder.parent / f"{federation}.toml"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(f'federation = "demo:{federation}"\n', encoding="utf-8")
        settings = [*NETWORK, *FEDERATIONS[federation], "training.batch_size=2", *LONGER.get(method, ())]
        run(recipe, method=method, out=folder, overrides=settings)
    return folder


def cell(federation: str, method: str, to: str, folder: Path) -> dict[str, Any]:
    """What the check of one export found."""
    made = trained(federation, method, folder)
    site = None
    if "fedbn" in method:
        site = sorted(path.name for path in (made / "sites").iterdir())[0]
    out = folder / "out" / to
    shutil.rmtree(out, ignore_errors=True)
    try:
        done = export_model(made, to, out=out, site=site)
    except PolyclinicError as error:
        return {"problem": str(error)}
    check = done.check
    return {
        "images": len(check.images), "kind": check.kind, "pixels": check.pixels, "differing": check.differing,
        "difference": check.largest_difference, "foreground": check.foreground, "fixed_size": done.fixed_size,
    }  # fmt: skip


def words(found: dict[str, Any] | None) -> str:
    """One cell of the table."""
    if found is None:
        return ""
    if "problem" in found:
        return found["problem"]
    masks = "identical" if not found["differing"] else f"{found['differing']} of {found['pixels']} pixels differ"
    empty = " (all of one class)" if found.get("foreground") in (0, found["pixels"]) else ""
    return f"{masks}{empty}, {found['difference']:.0e}"


def table(cells: dict[str, dict[str, Any]], formats: list[str]) -> str:
    """The page."""
    rows = [
        "# Exported models",
        "",
        "Masks of exported models against those of `polyclinic predict`, and the largest difference of a probability:",
        "what the check of `polyclinic export` itself found on up to four test images of each run, from its sites in",
        "turns. ONNX and TorchScript ran through the code of the exported `segment.py`, the bundle through",
        "`python -m monai.bundle run` in a process of its own. Networks are U-Nets of width 4 and depth 2 after a few",
        "steps of training, so that classes are near each other and rounding would show; sizes, spacing, windows,",
        "neighbours and intensities differ between federations. `fedavg+lddg` trained for 40 steps, because its masks",
        "were empty before; where they still are, the cell says so, and the probabilities alone are evidence.",
        "",
        f"Made on {date.today().isoformat()} by `python benchmarks/exports.py --scratch FOLDER` with "
        + ", ".join(f"{package} {version(package)}" for package in PACKAGES)
        + ".",
        "",
        "| federation | method | in the network | " + " | ".join(formats) + " |",
        "|---" * (3 + len(formats)) + "|",
    ]
    for federation in FEDERATIONS:
        for method, what in METHODS.items():
            found = [cells.get(f"{federation} {method} {to}") for to in formats]
            if any(found):
                rows.append(f"| {federation} | `{method}` | {what} | " + " | ".join(map(words, found)) + " |")
    settings = [f"| {name} | {', '.join(f'`{key}`' for key in keys)} |" for name, keys in FEDERATIONS.items()]
    return "\n".join([*rows, "", "| federation | settings |", "|---|---|", *settings]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--federations", default=",".join(FEDERATIONS))
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--formats", default="onnx,torchscript,monai-bundle")
    chosen = parser.parse_args()
    path = chosen.scratch / "cells.json"
    cells: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    for to in chosen.formats.split(","):
        for federation in chosen.federations.split(","):
            for method in chosen.methods.split(";"):
                key = f"{federation} {method} {to}"
                if key not in cells:
                    folder = chosen.scratch / federation / "".join(c if c.isalnum() else "-" for c in method)
                    cells[key] = cell(federation, method, to, folder)
                    chosen.scratch.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(cells, indent=1))
                    print(key, words(cells[key]), flush=True)
    formats = [to for to in FORMATS if any(key.endswith(f" {to}") for key in cells)]
    (Path(__file__).parent / "exports.md").write_text(table(cells, formats), encoding="utf-8")


if __name__ == "__main__":
    main()
