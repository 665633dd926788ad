"""What the closed form of FSR saves against the form in the frequency domain that FedBCS's released code takes.

The frequency-domain form transforms the map and its instance norm, mixes amplitudes, takes the phase with atan2, puts
both together again and transforms back. Forward and backward of the two forms take turns in one process, so that a
noisy machine disturbs both alike; they must agree in output and gradients. Extra memory is the peak over what is
resident when map and slope exist, output and gradient of the map included, each in a fresh process. One thread.

    python benchmarks/fsr_forms.py                # prints a table
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from polyclinic.components.features.fsr import Form, StyleRecalibration
from polyclinic.core.machine import keep_freed_memory

SHAPE = (6, 64, 128, 128)
FLOOR = 1e-5


def amplitude(spectrum: Tensor) -> Tensor:
    """With the floor of the released code: the root has no finite slope at zero."""
    return (spectrum.real.square() + spectrum.imag.square()).clamp_min(FLOOR).sqrt()


def fft_form(layer: StyleRecalibration, x: Tensor) -> Tensor:
    """The layer's function of ``(batch, channel, *spatial)`` in the frequency domain, with the layer's own weights."""
    dims, ones = tuple(range(2, x.dim())), [1] * (x.dim() - 2)
    spectrum, normal = torch.fft.fftn(x, dim=dims), torch.fft.fftn(F.instance_norm(x), dim=dims)
    chi, chi_norm, phase = amplitude(spectrum), amplitude(normal), torch.atan2(spectrum.imag, spectrum.real)
    if layer.form == "paper":
        means = torch.cat([chi_norm.mean(dims), chi.mean(dims)], 1) / x.shape[2:].numel()
        logits = layer.gates(means.log1p()).view(len(x), 2, -1, *ones)
        w0, w1 = (logits.sigmoid() if layer.gate == "sigmoid" else logits.softmax(1)).unbind(1)
    else:
        w0, w1 = (layer.mix / 0.1).softmax(0)
    mixed = w0 * chi_norm + w1 * chi
    y = torch.fft.ifftn(torch.complex(mixed * phase.cos(), mixed * phase.sin()), dim=dims).real
    return y if layer.form == "paper" else y * layer.scale.view(-1, *ones) + layer.bias.view(-1, *ones)


def closed_form(layer: StyleRecalibration, x: Tensor) -> Tensor:
    return layer(x)


FORMS: dict[str, Callable[[StyleRecalibration, Tensor], Tensor]] = {"fft": fft_form, "closed": closed_form}


def example(shape: Sequence[int], form: Form) -> tuple[StyleRecalibration, Tensor, Tensor]:
    """A layer away from its start, a map like one after a ReLU, and a slope."""
    torch.manual_seed(0)
    layer = StyleRecalibration(shape[1], len(shape) - 2, form)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return layer, torch.randn(*shape).add_(0.5).relu_(), torch.randn(*shape)


def step(which: str, layer: StyleRecalibration, x: Tensor, slope: Tensor) -> tuple[Tensor, ...]:
    """Forward and backward: the output, the gradient of the map and those of the weights."""
    x = x.detach().requires_grad_()
    y = FORMS[which](layer, x)
    return (y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], slope))


def seconds(shape: Sequence[int], form: Form, repeats: int) -> dict[str, list[float]]:
    """Seconds of every step of each form, taken in turns after one step of each, whose results are compared."""
    torch.set_num_threads(1)
    keep_freed_memory()
    layer, x, slope = example(shape, form)
    for closed, dense in zip(step("closed", layer, x, slope), step("fft", layer, x, slope), strict=True):
        # As a whole, not pixel by pixel: where an amplitude is below its floor, the dense form's slope is another one.
        assert (closed - dense).norm() < 2e-3 * dense.norm(), "the two forms disagree"
    taken: dict[str, list[float]] = {which: [] for which in FORMS}
    for number in range(repeats):
        for which in list(FORMS)[:: -1 if number % 2 else 1]:
            started = time.perf_counter()
            step(which, layer, x, slope)
            taken[which].append(time.perf_counter() - started)
    return taken


def extra_mib(which: str, shape: Sequence[int], form: Form) -> float:
    """Peak of one step over what was resident before it; a small step loads the libraries first."""
    torch.set_num_threads(1)
    step(which, *example([1, 2, *[4] * (len(shape) - 2)], form))
    layer, x, slope = example(shape, form)
    before = resident_mib("VmRSS")
    step(which, layer, x, slope)
    return resident_mib("VmHWM") - before


def resident_mib(field: str) -> float:
    """Resident memory, now or at its peak. Linux hands ``ru_maxrss`` of a parent down to its child, this one not."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field)) / 1024


def fresh_process(task: str, shape: Sequence[int], form: Form, repeats: int = 1) -> Any:
    command = [sys.executable, __file__, "--task", task, "--form", form, "--repeats", str(repeats), "--shape"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        [*command, *map(str, shape)], check=True, stdout=subprocess.PIPE, text=True, env=alone
    ).stdout
    return json.loads(output)


def measure_fsr(shape: Sequence[int] = SHAPE, form: Form = "paper", repeats: int = 11) -> dict[str, float]:
    """Median seconds of forward and backward, extra MiB, and what the closed form saves of both.

    ``speedup`` is the median over pairs of steps that followed each other; ``memory`` is closed over fft.
    """
    taken = fresh_process("seconds", shape, form, repeats)
    mib = {which: fresh_process(which, shape, form) for which in FORMS}
    return {
        "fft_seconds": statistics.median(taken["fft"]),
        "closed_seconds": statistics.median(taken["closed"]),
        "speedup": statistics.median(a / b for a, b in zip(taken["fft"], taken["closed"], strict=True)),
        "fft_mib": mib["fft"],
        "closed_mib": mib["closed"],
        "memory": mib["closed"] / mib["fft"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs="+", default=SHAPE)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--task", choices=["seconds", *FORMS], help=argparse.SUPPRESS)
    parser.add_argument("--form", choices=get_args(Form), default="paper", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.task:
        if chosen.task == "seconds":
            answer: Any = seconds(chosen.shape, chosen.form, chosen.repeats)
        else:
            answer = extra_mib(chosen.task, chosen.shape, chosen.form)
        print(json.dumps(answer))
        return
    print(
        f"FSR, {'x'.join(map(str, chosen.shape))}, float32, torch {torch.__version__}, {platform.machine()}, 1 thread\n"
    )
    print("| form | fft (s) | closed (s) | speedup (wanted: 8) | fft (MiB) | closed (MiB) | ratio (wanted: 0.5) |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for form in get_args(Form):
        one = measure_fsr(chosen.shape, form, chosen.repeats)
        print(
            f"| {form} | {one['fft_seconds']:.3f} | {one['closed_seconds']:.3f} | {one['speedup']:.1f} "
            f"| {one['fft_mib']:.0f} | {one['closed_mib']:.0f} | {one['memory']:.3f} |"
        )


if __name__ == "__main__":
    main()
