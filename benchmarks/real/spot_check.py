"""Dice and HD95 of finished runs, measured again by packages that are neither polyclinic's nor MONAI's.

    POLYCLINIC_REAL_DATA=folder python benchmarks/real/spot_check.py runs/real/fsf3a/hippocampus/fsf3a-seed0

writes benchmarks/real/spot_check.md. `polyclinic.predict` makes the masks of the test images in split.csv; they and the
labels are read with nibabel or Pillow alone, measured by the packages, and compared with the run's cases.csv. It ends
with status 1 where a value differs. The packages are no dependencies: `pip install SimpleITK`, and `pip install medpy`
to see another definition of HD95 beside ours.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray
from PIL import Image

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_text

try:
    import SimpleITK as sitk  # noqa: N813 (everybody calls it so)
except ImportError:
    sitk = None
try:
    from medpy.metric import binary as medpy
except ImportError:
    medpy = None

TOLERANCES = {"dice": 1e-9, "hd95": 1e-4}  # SimpleITK's distances are float32
VOLUMES, PICTURES = (".nii.gz", ".nii"), (".png", ".tif", ".tiff", ".bmp", ".jpg")

Mask = NDArray[np.bool_]
Measure = Callable[[Mask, Mask, Sequence[float]], dict[str, float]]
"""Dice and HD95 of a predicted and a true mask, neither of them empty, and the distance of voxels along each axis."""
Key = tuple[str, str, str]
"""Site, image and class."""


@dataclass(frozen=True)
class Package:
    """What measures; ``same_hd95`` says whether its HD95 is defined as polyclinic's."""

    name: str
    measure: Measure
    same_hd95: bool = True


@dataclass
class Check:
    """What came of one run and one package: how far each value of cases.csv is from the package's."""

    run: Path
    package: Package
    cases: int
    classes: int
    left_out: int = 0
    """Pairs of masks of which one is empty: their values are a policy, and no measurement."""
    apart: dict[str, dict[Key, float]] = field(default_factory=lambda: {metric: {} for metric in TOLERANCES})

    def wrong(self) -> list[tuple[str, Key, float]]:
        """Metric, place and difference of values that should be the same and are not, the largest first."""
        same = [metric for metric in TOLERANCES if metric == "dice" or self.package.same_hd95]
        found = [(m, key, gap) for m in same for key, gap in self.apart[m].items() if gap > TOLERANCES[m]]
        return sorted(found, key=lambda one: -one[2])


def by_simpleitk(predicted: Mask, true: Mask, spacing: Sequence[float]) -> dict[str, float]:
    """Overlap, contours and distance maps of ITK; HD95 is the larger one of the two directed percentiles."""
    images = [_itk_image(mask, spacing) for mask in (predicted, true)]
    overlap = sitk.LabelOverlapMeasuresImageFilter()
    overlap.Execute(*images)
    first, second = (sitk.BinaryContour(image, fullyConnected=False) for image in images)
    hd95 = max(np.percentile(_itk_distances(*pair), 95) for pair in ((first, second), (second, first)))
    return {"dice": overlap.GetDiceCoefficient(), "hd95": float(hd95)}


def _itk_image(mask: Mask, spacing: Sequence[float]) -> Any:
    # ITK finds no contour along the border of an image, so there has to be background beyond the mask.
    image = sitk.GetImageFromArray(np.pad(mask, 1).astype(np.uint8))
    image.SetSpacing([float(step) for step in reversed(spacing)])
    return image


def _itk_distances(source: Any, target: Any) -> NDArray[np.float64]:
    """From every voxel of a contour to the nearest one of the other; both are images of 0 and 1."""
    squares = sitk.SignedMaurerDistanceMap(target, squaredDistance=True, useImageSpacing=True)
    of_source = sitk.GetArrayFromImage(squares)[sitk.GetArrayFromImage(source) > 0]
    return np.sqrt(np.abs(of_source.astype(np.float64)))


def by_medpy(predicted: Mask, true: Mask, spacing: Sequence[float]) -> dict[str, float]:
    """MedPy's HD95 is one percentile of the distances of both directions together."""
    return {"dice": float(medpy.dc(predicted, true)), "hd95": float(medpy.hd95(predicted, true, spacing))}


def packages() -> list[Package]:
    """Those that are installed; SimpleITK has to be."""
    if sitk is None:
        raise PolyclinicError(
            "SimpleITK is not installed, and masks are measured with it; run `pip install SimpleITK`."
        )
    others = [Package(f"MedPy {version('medpy')}", by_medpy, same_hd95=False)] if medpy else []
    return [Package(f"SimpleITK {version('SimpleITK')}", by_simpleitk), *others]


def check(folder: Path, data: Path, measured_by: Sequence[Package]) -> list[Check]:
    """Compare the values of a run with those of each package; ``data`` holds the federations by name."""
    run = read_run(folder)
    checks = [Check(folder, package, len(run.tested), len(run.classes) - 1) for package in measured_by]
    with TemporaryDirectory(prefix="spot-check-") as scratch:
        federation = data / run.federation
        for (site, image), mask_file in _predict(folder, federation, run.tested, Path(scratch)).items():
            label_file = _file(federation / site / "labels", image)
            predicted, true = (_class_map(file, len(run.classes)) for file in (mask_file, label_file))
            if predicted.shape != true.shape:
                raise PolyclinicError(f"{label_file}: is {true.shape}, but its mask {predicted.shape}; see --data.")
            if run.size not in ("auto", list(true.shape)):
                raise PolyclinicError(
                    f"{folder}: {image} was scored with data.size = {run.size}, and masks have the size of the file, "
                    f"{list(true.shape)}; give a run whose images keep their size."
                )
            spacing = run.spacing_of(label_file, true.ndim)
            for number, name in enumerate(run.classes[1:], start=1):
                for one in checks:
                    _compare(one, (site, image, name), (predicted == number, true == number, spacing), run.values)
    return checks


def _compare(
    into: Check, key: Key, pair: tuple[Mask, Mask, Sequence[float]], values: dict[str, dict[Key, float]]
) -> None:
    if not (pair[0].any() and pair[1].any()):
        into.left_out += 1
        return
    for metric, value in into.package.measure(*pair).items():
        if values[metric]:
            apart = abs(value - values[metric][key])
            into.apart[metric][key] = math.inf if math.isnan(apart) else apart


@dataclass(frozen=True)
class Run:
    """What the files of a finished run say; ``values`` are those of cases.csv by metric, none of a metric it lacks."""

    federation: str
    size: str | list[int]
    units: str
    classes: list[str]
    nominal_spacing: list[float]
    tested: list[tuple[str, str]]
    values: dict[str, dict[Key, float]]

    def spacing_of(self, file: Path, rank: int) -> list[float]:
        """The distance of voxels along each axis, in the units of the run's distances."""
        if self.units == "pixel":
            return [1.0] * rank
        volume = file.name.endswith(VOLUMES)
        return [float(s) for s in nibabel.load(file).header.get_zooms()[:rank]] if volume else self.nominal_spacing


def read_run(folder: Path) -> Run:
    """Read a run; one that cannot be checked gets a sentence."""
    for name, advice in {
        "summary.json": "is not a finished run; wait for it, or give another folder",
        "checkpoints": "has no weights, as all runs that were restored from records; give one that was trained here",
        "split.csv": "has a protocol of several parts; give one that tests every case once",
    }.items():
        if not (folder / name).exists():
            raise PolyclinicError(f"{folder}: {advice}.")
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    if task.get("regions") or any(recipe["data"].get(key) for key in ("spacing", "crop")):
        raise PolyclinicError(f"{folder}: judges regions, or crops or resamples images, which masks do not show.")
    tested = [(row["site"], row["image"]) for row in _rows(folder / "split.csv") if row["split"] == "test"]
    values: dict[str, dict[Key, float]] = {metric: {} for metric in TOLERANCES}
    for row in _rows(folder / "cases.csv"):
        if row["metric"] in values:
            values[row["metric"]][row["site"], row["image"], row["class"]] = float(row["value"])
    expected = {(*image, name) for image in tested for name in task["classes"][1:]}
    for metric in ("dice", *(["hd95"] if values["hd95"] else [])):
        if odd := sorted(expected ^ values[metric].keys()):
            raise PolyclinicError(f"{folder}: {metric} of {', '.join(odd[0])} is in cases.csv or split.csv alone.")
    name, spacing = Path(recipe["federation"]).name, task["spacing"] or []
    return Run(name, recipe["data"]["size"], recipe["evaluation"]["units"], task["classes"], spacing, tested, values)


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _predict(run: Path, federation: Path, tested: list[tuple[str, str]], scratch: Path) -> dict[tuple[str, str], Path]:
    """The mask of each test image, made as a user makes it: a folder of images in, a folder of masks out."""
    for site, image in tested:
        file = _file(federation / site / "images", image)
        (scratch / site / "images").mkdir(parents=True, exist_ok=True)
        (scratch / site / "images" / file.name).symlink_to(file.resolve())
    for site in sorted({site for site, _ in tested}):
        own = site if (run / "sites" / site).is_dir() else None  # a pooled training knows no sites
        polyclinic.predict(run, scratch / site / "images", scratch / site / "masks", site=own, jobs=1)
    return {(site, image): _file(scratch / site / "masks", image) for site, image in tested}


def _file(folder: Path, image: str) -> Path:
    for suffix in (*VOLUMES, *PICTURES):
        if (folder / f"{image}{suffix}").exists():
            return folder / f"{image}{suffix}"
    raise PolyclinicError(f"{folder}: holds no NIfTI volume or picture named {image}; give the right --data.")


def _class_map(file: Path, classes: int) -> NDArray[np.int64]:
    """Class numbers ``(*spatial)``; a binary mask may have 255 for 1."""
    array = np.asarray(nibabel.load(file).dataobj if file.name.endswith(VOLUMES) else Image.open(file)).astype(np.int64)
    found = set(np.unique(array).tolist())
    if classes == 2 and found <= {0, 255}:
        return array // 255
    if not found <= set(range(classes)):
        raise PolyclinicError(f"{file}: holds {sorted(found)}, expected classes from 0 to {classes - 1}.")
    return array


def page(checks: Sequence[Check], command: str) -> str:
    """All that was found, as Markdown."""
    rows = [f"| {' | '.join(_cells(one))} |" for one in checks]
    return f"""# Spot check of Dice and HD95

Made by `{command}`, where `POLYCLINIC_REAL_DATA` names the folder of the federations.

Masks of all test images are made by `polyclinic.predict`; they and the labels are read with nibabel or Pillow and
measured by packages that are neither polyclinic's nor MONAI's. The last three columns have the largest absolute
difference from the values in the run's cases.csv: of Dice as a share (1 is a perfect overlap), of HD95 in the run's
units (mm or pixels). A pair is a case and a class; pairs with an empty mask are left out, because what they are worth
is a policy.

| run | cases | classes | pairs | left out | package | Dice | HD95, our definition | HD95, another definition |
|---|---:|---:|---:|---:|---|---:|---:|---:|
{chr(10).join(rows)}

HD95 of polyclinic (and of MONAI) is the larger one of the two directed 95th percentiles, over the distances from each
surface voxel of one mask to the nearest surface voxel of the other; a surface voxel has a face neighbour outside of the
mask, percentiles are interpolated linearly. SimpleITK has no HD95; contours (`BinaryContour`), distances
(`SignedMaurerDistanceMap`) and Dice (`LabelOverlapMeasures`) are its, the percentiles NumPy's. MedPy's `hd95` is one
percentile of the distances of both directions together, from the same surfaces: what differs there is the definition.
"""


def _cells(one: Check) -> list[str]:
    dice, hd95 = (list(one.apart[metric].values()) for metric in ("dice", "hd95"))
    largest = f"{max(hd95):.1e}" if hd95 else "not measured"
    other = f"{max(hd95):.2f} ({mean(hd95):.2f} on average)" if hd95 else "not measured"
    return [
        "/".join(one.run.resolve().parts[-3:]), str(one.cases), str(one.classes), str(len(dice)), str(one.left_out),
        one.package.name, f"{max(dice):.1e}" if dice else "not measured",
        *((largest, "") if one.package.same_hd95 else ("", other)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of finished runs with their weights")
    parser.add_argument("--data", type=Path, help="the folder of the federations; POLYCLINIC_REAL_DATA by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="the page to write")
    options = parser.parse_args()
    data = options.data or os.environ.get("POLYCLINIC_REAL_DATA")
    if not data:
        parser.error("give --data or set POLYCLINIC_REAL_DATA to the folder that holds the federations")
    try:
        installed = packages()
        checks = [one for run in options.runs for one in check(run, Path(data), installed)]
    except PolyclinicError as error:
        parser.error(str(error))
    command = shlex.join(["python", "benchmarks/real/spot_check.py", *map(str, options.runs)])
    text = page(checks, command)
    write_text(options.out, text)
    print(text)
    for one in checks:
        for metric, key, gap in one.wrong()[:1]:
            raise SystemExit(f"{one.run}: {metric} of {', '.join(key)} is {gap:g} from that of {one.package.name}.")


if __name__ == "__main__":
    main()
