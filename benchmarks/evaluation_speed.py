"""Seconds per thousand cases for all metrics, against MONAI's and MedPy's, which take turns case by case.

    python benchmarks/evaluation_speed.py         # writes benchmarks/evaluation_speed.md

Cases are spheres with rough edges, a predicted and a true label map each. Every package gets the two maps and gives
Dice, IoU, precision, sensitivity, HD95, ASD and ASSD of every foreground class. MONAI's are its functions
``compute_...`` on one-hot tensors; MedPy is no dependency and is left out where ``pip install medpy`` was not run.
The values of the packages are compared on the same cases.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from machine import described
from monai.metrics import (
    compute_average_surface_distance,
    compute_confusion_matrix_metric,
    compute_dice,
    compute_hausdorff_distance,
    compute_iou,
    get_confusion_matrix,
)
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from polyclinic.core.machine import prepare_process
from polyclinic.core.side_by_side import side_by_side
from polyclinic.evaluation.case_metrics import case_metrics

try:
    from medpy.metric import binary as medpy
except ImportError:
    medpy = None

OVERLAPS = ("dice", "iou", "precision", "sensitivity")
METRICS = (*OVERLAPS, "hd95", "asd", "assd")
KINDS = (((256, 256), 2), ((256, 256), 4), ((64, 64, 64), 2), ((64, 64, 64), 4))
Maps = tuple[NDArray[np.uint8], NDArray[np.uint8]]
Values = dict[str, list[float]]


def case(shape: tuple[int, ...], classes: int, seed: int) -> Maps:
    """A predicted and a true label map: a sphere for each class, the predicted ones with rough edges."""
    numbers = np.random.default_rng(seed)
    places = np.stack(np.meshgrid(*[np.arange(size) for size in shape], indexing="ij"))
    rough = gaussian_filter(numbers.normal(size=shape), min(shape) / 16)
    rough *= 0.02 * min(shape) / rough.std()
    predicted, true = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    for member in range(1, classes):
        centre = numbers.uniform(0.35, 0.65, len(shape)) * shape
        radius = min(shape) * numbers.uniform(0.12, 0.3) / member**0.5
        distance = np.sqrt(((places.T - centre) ** 2).sum(-1)).T
        predicted[distance + rough < radius], true[distance < radius] = member, member
    return predicted, true


def by_polyclinic(maps: Maps, classes: int, metrics: tuple[str, ...] = METRICS) -> Values:
    return case_metrics(*maps, classes, metrics)


def by_monai(maps: Maps, classes: int) -> Values:
    predicted, true = (
        torch.nn.functional.one_hot(torch.from_numpy(labels).long(), classes).movedim(-1, 0)[None] for labels in maps
    )
    confusion = get_confusion_matrix(predicted, true, include_background=False)
    values = {
        "dice": compute_dice(predicted, true, include_background=False),
        "iou": compute_iou(predicted, true, include_background=False),
        "precision": compute_confusion_matrix_metric("precision", confusion),
        "sensitivity": compute_confusion_matrix_metric("sensitivity", confusion),
        "hd95": compute_hausdorff_distance(predicted, true, percentile=95),
        "asd": compute_average_surface_distance(predicted, true),
        "assd": compute_average_surface_distance(predicted, true, symmetric=True),
    }
    return {name: value.flatten().tolist() for name, value in values.items()}


def by_medpy(maps: Maps, classes: int) -> Values:
    functions = (medpy.dc, medpy.jc, medpy.precision, medpy.recall, medpy.hd95, medpy.asd, medpy.assd)
    pairs = [(maps[0] == member, maps[1] == member) for member in range(1, classes)]
    return {name: [float(function(*pair)) for pair in pairs] for name, function in zip(METRICS, functions, strict=True)}


def in_two_threads(maps: list[Maps], classes: int) -> float:
    """Seconds a case with ``engine.threads = 2``."""
    started = time.perf_counter()
    list(side_by_side(partial(by_polyclinic, classes=classes), maps, 2))
    return (time.perf_counter() - started) / len(maps)


def measure(
    shape: tuple[int, ...], classes: int, count: int, packages: dict[str, Callable[..., Values]]
) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    """Seconds of each case by package, and the largest difference of each metric from polyclinic's."""
    seconds: dict[str, list[float]] = {name: [] for name in packages}
    apart: dict[str, dict[str, float]] = {name: dict.fromkeys(METRICS, 0.0) for name in packages}
    for number in range(-1, count):
        maps, values = case(shape, classes, number % 1000), {}
        for name in list(packages)[:: -1 if number % 2 else 1]:
            started = time.perf_counter()
            values[name] = packages[name](maps, classes)
            if number >= 0:  # the one before warms up
                seconds[name].append(time.perf_counter() - started)
        for name, of_package in values.items():
            for metric in of_package:
                gap = np.abs(np.subtract(of_package[metric], values["polyclinic"][metric])).max()
                apart[name][metric] = max(apart[name][metric], float(gap))
    return seconds, apart


def lines_of(shape: tuple[int, ...], classes: int, count: int) -> tuple[list[str], dict[str, dict[str, float]]]:
    packages = {
        "polyclinic": by_polyclinic,
        "polyclinic, overlaps alone": partial(by_polyclinic, metrics=OVERLAPS),
        "MONAI": by_monai,
        **({"MedPy": by_medpy} if medpy else {}),
    }
    seconds, apart = measure(shape, classes, count, packages)
    kind = f"{'x'.join(map(str, shape))}, {classes} classes"
    rows = []
    for name, times in seconds.items():
        over = median(a / b for a, b in zip(times, seconds["polyclinic"], strict=True))
        rows.append(f"| {kind} | {name} | {1000 * median(times):.2f} | {over:.2f} |")
    threads = in_two_threads([case(shape, classes, number) for number in range(count)], classes)
    rows.append(f"| {kind} | polyclinic, two threads | {1000 * threads:.2f} | |")
    return rows, apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=40, help="cases of each kind")
    arguments = parser.parse_args()
    prepare_process(1)
    lines: list[str] = []
    apart: dict[str, dict[str, float]] = {}
    for shape, classes in KINDS:
        rows, gaps = lines_of(shape, classes, arguments.cases)
        lines += rows
        for name, by_metric in gaps.items():
            known = apart.setdefault(name, dict.fromkeys(METRICS, 0.0))
            apart[name] = {metric: max(known[metric], gap) for metric, gap in by_metric.items()}
    others = [name for name in apart if not name.startswith("polyclinic")]
    text = f"""# Evaluation

Made by `python benchmarks/evaluation_speed.py --cases {arguments.cases}` on {described("monai", "medpy", "scipy")}
One thread but where two are named. All of Dice, IoU, precision, sensitivity, HD95, ASD and ASSD of every foreground
class, from two label maps; the packages take turns case by case; medians over {arguments.cases} cases, and of the
ratios of one case. A run asks for the metrics that its recipe lists, and surfaces are only looked at where one needs
them.

| cases | package | seconds per thousand | over polyclinic |
|---|---|---:|---:|
{chr(10).join(lines)}

The largest difference from polyclinic's value over all these cases (distances in voxels). MedPy's HD95 is another
quantity: the percentile of both directions together, where MONAI and polyclinic take the larger of the two.

| metric | {" | ".join(others)} |
|---|{"---:|" * len(others)}
{chr(10).join(f"| {m} | " + " | ".join(f"{apart[name][m]:.1e}" for name in others) + " |" for m in METRICS)}
"""
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
