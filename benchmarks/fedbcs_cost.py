"""What FedBCS costs: its two parts against the forms that the paper writes down, and a round against FedAvg's.

Two things that are compared take turns, so that a noisy machine disturbs both alike; peak memory is that of fresh
processes. One thread. `fsr_forms.py` and `cdpa_forms.py` hold the dense forms.

    python benchmarks/fedbcs_cost.py              # writes benchmarks/fedbcs_cost.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cdpa_forms
import fsr_forms
import torch
from rounds import Federation, take_turns

from polyclinic.core.machine import keep_freed_memory

# The maps after stages 2, 3 and 4 for the paper's images of 256x256 (histology) and 384x384 (prostate), batch 6.
FSR_SHAPES = (
    (6, 64, 128, 128), (6, 128, 64, 64), (6, 256, 32, 32),
    (6, 64, 192, 192), (6, 128, 96, 96), (6, 256, 48, 48),
)  # fmt: skip
# Image size, strides of encoder and decoder, context: polyclinic's default, and what the released code does.
# The released code's form at 384x384 is left out: its dense embedding alone takes 2.7 GB, and several copies exist.
CDPA_CASES = (
    (128, (4, 4), "adjacent"), (128, (1, 4), "deepest"), (256, (4, 4), "adjacent"), (256, (1, 4), "deepest"),
    (384, (4, 4), "adjacent"),
)  # fmt: skip


def cdpa_seconds(size: int, strides: tuple[int, int], context: Any, repeats: int) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    keep_freed_memory()
    data = cdpa_forms.problem(6, size, context)
    values = {form: cdpa_forms.forward_backward(form, data, strides) for form in cdpa_forms.FORMS}
    assert abs(values["dense"] - values["factorised"]) < 1e-5 * abs(values["dense"]), values
    taken: dict[str, list[float]] = {form: [] for form in cdpa_forms.FORMS}
    for number in range(repeats):
        for form in list(cdpa_forms.FORMS)[:: -1 if number % 2 else 1]:
            started = time.perf_counter()
            cdpa_forms.forward_backward(form, data, strides)
            taken[form].append(time.perf_counter() - started)
    return taken


def cdpa_extra_mib(form: str, size: int, strides: tuple[int, int], context: Any) -> float:
    """Peak of one pass over what was resident before it; a small pass loads the libraries first."""
    torch.set_num_threads(1)
    cdpa_forms.forward_backward(form, cdpa_forms.problem(1, 16, context), strides)
    data = cdpa_forms.problem(6, size, context)
    before = fsr_forms.resident_mib("VmRSS")
    cdpa_forms.forward_backward(form, data, strides)
    return fsr_forms.resident_mib("VmHWM") - before


def fresh(**arguments: Any) -> Any:
    """A task of this file in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--task", json.dumps(arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(output.stdout)


def perform(task: dict[str, Any]) -> Any:
    case = (task["size"], tuple(task["strides"]), task["context"])
    return cdpa_seconds(*case, task["repeats"]) if "repeats" in task else cdpa_extra_mib(task["form"], *case)


def measure_cdpa(size: int, strides: tuple[int, int], context: str, repeats: int) -> dict[str, float]:
    case = {"size": size, "strides": strides, "context": context}
    taken = fresh(**case, repeats=repeats)
    ratios = [d / f for d, f in zip(taken["dense"], taken["factorised"], strict=True)]
    memory = {form: fresh(**case, form=form) for form in cdpa_forms.FORMS}
    return {
        **{form: statistics.median(values) for form, values in taken.items()},
        "faster": statistics.median(ratios),
        **{f"{form}_mib": value for form, value in memory.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=12, help="images at each of the four sites")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--task", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task is not None:
        print(json.dumps(perform(arguments.task)))
        return
    torch.set_num_threads(1)
    report = [
        "# What FedBCS costs",
        "",
        f"Made by `python benchmarks/fedbcs_cost.py` with torch {torch.__version__}, one thread, {platform.machine()}.",
        "Forward and backward of the two forms take turns in one process; medians of seconds, and of the ratios of",
        "neighbouring turns. Extra memory is the peak over what was resident before, in a fresh process.",
        "",
        "## FSR against its form in the frequency domain (wanted: 8 times faster, at most half the memory)",
        "",
        "| form | map | FFT form (s) | closed form (s) | faster | FFT form (MiB) | closed form (MiB) | memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for form in ("paper", "released"):
        for shape in FSR_SHAPES:
            found = fsr_forms.measure_fsr(shape, form, arguments.repeats)
            report.append(
                f"| {form} | {'x'.join(map(str, shape))} | {found['fft_seconds']:.3f} | {found['closed_seconds']:.3f} "
                f"| **{found['speedup']:.1f}x** | {found['fft_mib']:.0f} | {found['closed_mib']:.0f} "
                f"| {found['memory']:.2f} |"
            )
            print(report[-1])
    report += [
        "",
        "The last three maps are those of the paper's prostate images, the others those of its histology images.",
        "",
        "## CDPA's losses against the dense embedding (wanted: 2 times faster, at most half the memory)",
        "",
        "Both streams of a U-Net of width 32, batch 6, four prototypes, class means included. Strides 1 and 4 with the",
        "deepest level as context is what the released code does; strides 4 and 4 with the next deeper level are the",
        "default here.",
        "",
        "| image | strides | context | dense (s) | factorised (s) | faster | dense (MiB) | factorised (MiB) | memory |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for size, strides, context in CDPA_CASES:
        found = measure_cdpa(size, strides, context, arguments.repeats)
        report.append(
            f"| {size}x{size} | {strides[0]}, {strides[1]} | {context} | {found['dense']:.3f} "
            f"| {found['factorised']:.3f} | **{found['faster']:.1f}x** | {found['dense_mib']:.0f} "
            f"| {found['factorised_mib']:.0f} | {found['factorised_mib'] / found['dense_mib']:.2f} |"
        )
        print(report[-1])
    methods = ("fedavg", "fedbcs", "fedbcs-cdpa", "fedbcs-fsr")
    measured = take_turns(
        methods, Federation(4, arguments.images, 128), arguments.rounds,
        {"width": 32, "depth": 4, "norm": "instance", "bias": False}, {"batch_size": 6, "loss": "dice-ce-mean"},
    )  # fmt: skip
    report += [
        "",
        "## A round (wanted: at most 1.35 of FedAvg's)",
        "",
        f"Four sites of {arguments.images} RGB images of 128x128, batch 6, U-Net of width 32 and depth 4, Adam;",
        f"{arguments.rounds - 1} rounds after the first, which has no prototypes yet. The methods take turns.",
        "",
        "| method | seconds a round | over FedAvg |",
        "|---|---:|---:|",
    ]
    for method in methods:
        found = measured[method]
        report.append(f"| {method} | {statistics.median(found.wall):.2f} | **{found.over(measured['fedavg']):.3f}** |")
    text = "\n".join(report) + "\n"
    Path(__file__).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
