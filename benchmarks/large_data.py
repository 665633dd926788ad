"""Training on images ten times larger than the memory they may take, and how long a second start takes.

Writes two sites of noise as files: pictures that are trained on whole, and volumes that are trained on in patches.
Each is prepared into a new cache (the first start), and then found there (the second start). Then a round of local
training takes turns between three sets of the same images: in memory; mapped from the cache, all of which is in the
page cache; and mapped with at most a tenth of it in memory. For the last one everything of the entries is dropped
from the process and from the page cache before each round, and again whenever a tenth was read (``madvise`` and
``posix_fadvise``, DONTNEED), what was read ahead for the next steps too; the time of dropping within a round counts.
The bytes that came from the disk are told by the kernel (``/proc/self/io``). In every round all three must end with
the same weights, bit for bit.

    python benchmarks/large_data.py               # writes benchmarks/large_data.md
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from mmap import MADV_DONTNEED
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from polyclinic.core.machine import available_cores
from polyclinic.data.build_imageset import Preparation, build_imagesets, prepared_bytes
from polyclinic.data.imageset import ImageSet
from polyclinic.data.sitedata import SiteData
from polyclinic.exchange.messages import Broadcast
from polyclinic.federation.site import Site
from polyclinic.federation.site_store import SiteStore
from polyclinic.recipe import DataSettings
from polyclinic.recipe.files import make_recipe
from polyclinic.runs.plan import RunPlan, plan_run

SHARE = 10  # how much larger the images are than what may be in memory


class Evicted:
    """An image set whose entries are dropped from memory after every tenth of them that was read."""

    def __init__(self, images: ImageSet, files: Sequence[Path], limit: int) -> None:
        self.images, self.files, self.limit, self.read = images, files, limit, 0
        self.samples, self.labelled, self.uniform = images.samples, images.labelled, images.uniform

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._counted(self.images.batch(indices))

    def patches(self, *arguments: Any, **named: Any) -> tuple[Tensor, Tensor]:
        return self._counted(self.images.patches(*arguments, **named))

    def will_need(self, *arguments: Any) -> None:
        self.images.will_need(*arguments)

    def drop(self) -> None:
        for ahead in self.images._ahead:
            if ahead is not None:
                ahead._mapped.madvise(MADV_DONTNEED)  # what a process has mapped does not leave the page cache
        for path in self.files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.read = 0

    def _counted(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self.read += 4 * pair[0].numel() + pair[1].numel()
        if self.read > self.limit:
            self.drop()
        return pair


def write_pictures(root: Path, count: int, size: int) -> None:
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = random.integers(0, 255, (size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"images/{number:06d}.png", compress_level=1)
        Image.fromarray((pixels[..., 0] > 127).astype(np.uint8)).save(root / f"labels/{number:06d}.png")


def write_volumes(root: Path, count: int, size: int) -> None:
    random = np.random.default_rng(0)
    for number in range(count):
        voxels = random.integers(0, 255, (size, size, size), dtype=np.uint8)
        for folder, array in (("images", voxels), ("labels", (voxels > 250).astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), root / f"{folder}/{number:06d}.nii.gz")


def plan_for(root: Path, dims: int, patch: int | None, steps: int) -> RunPlan:
    (root / "federation.toml").write_text(f'spatial_dims = {dims}\nclasses = ["background", "x"]\n')
    return plan_run(
        make_recipe(
            {
                "federation": str(root),
                "data": {"split": [1.0, 0.0, 0.0], **({"patch": [patch] * 3} if patch else {})},
                "network": {"width": 16, "depth": 3},
                "training": {"rounds": 1000, "batch_size": 6 if dims == 2 else 2, "steps_per_epoch": steps},
                "policies": {"optimizer_state": "reset"},
                "engine": {"device": "cpu"},
            }
        )
    )


def starts(plan: RunPlan, cache: Path) -> tuple[list[float], ImageSet]:
    """Seconds of the first start and of the second one, and the mapped images."""
    items = plan.federation.sites["a"]
    settings = plan.recipe.data.model_copy(update={"cache": str(cache), "cache_limit_mb": 1e9})
    time.sleep(2.5)  # files that have just been written are not trusted to rest
    taken, images = [], None
    for _ in range(2):
        images = None
        started = time.perf_counter()
        images = build_imagesets({"a": items}, Preparation(plan.federation, settings))["a"]
        taken.append(time.perf_counter() - started)
    assert images is not None
    return taken, images


def disk_reads() -> int:
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def take_turns(plan: RunPlan, sets: dict[str, Any], rounds: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Seconds of a round on each set, in turns, the bytes that it read from the disk, and a hash of the weights."""
    workspace = plan.open_workspace()
    splits = {"train": torch.arange(len(sets["memory"])), "val": torch.empty(0).long(), "test": torch.empty(0).long()}
    sites = {name: Site(SiteData("a", images, splits), SiteStore(folder / name)) for name, images in sets.items()}
    found: dict[str, dict[str, Any]] = {name: {"seconds": [], "read": [], "weights": []} for name in sets}
    for number in range(-1, rounds):  # the round before the first warms up
        for name in list(sets)[:: -1 if number % 2 else 1]:
            if name == "tenth":
                sets[name].drop()
            elif name == "mapped":
                for path in sets["tenth"].files:  # what the other set has dropped
                    path.read_bytes()
            before, started = disk_reads(), time.perf_counter()
            update = sites[name].train(workspace, Broadcast(max(number, 0), dict(workspace.initial_exchanged)))
            seconds = time.perf_counter() - started
            if number >= 0:
                found[name]["seconds"].append(seconds)
                found[name]["read"].append(disk_reads() - before)
                found[name]["weights"].append({key: tensor.clone() for key, tensor in update.weights.items()})
    for name in sets:
        for own, other in zip(found[name]["weights"], found["memory"]["weights"], strict=True):
            assert all(torch.equal(own[key], other[key]) for key in own), f"{name}: other weights than in memory"
    return found


def measure(title: str, plan: RunPlan, folder: Path, rounds: int) -> list[str]:
    cache, settings = folder / "cache", plan.recipe.data
    taken, mapped = starts(plan, cache)
    total, _ = prepared_bytes(plan.federation.sites["a"], plan.federation, settings)
    off = DataSettings(**{**settings.model_dump(), "cache": "off", "memory_limit_mb": 1e9})
    memory = build_imagesets({"a": plan.federation.sites["a"]}, Preparation(plan.federation, off))["a"]
    evicted = Evicted(mapped, list(cache.glob("*.safetensors")), total // SHARE)
    found = take_turns(plan, {"memory": memory, "mapped": mapped, "tenth": evicted}, rounds, folder)
    in_memory = found["memory"]["seconds"]
    lines = [
        "", f"## {title}", "",
        f"{len(memory)} images, {total / 1e6:.0f} MB prepared; a tenth of it is {total / SHARE / 1e6:.0f} MB.", "",
        f"First start {taken[0]:.2f} s (on {available_cores()} cores), second start {taken[1]:.2f} s, "
        f"{taken[0] / taken[1]:.0f} times faster.", "",
        "| images | seconds a round, median (all) | speed over in memory, median of pairs | MB from disk, a round |",
        "|---|---|---|---|",
    ]  # fmt: skip
    words = {"memory": "in memory", "mapped": "mapped, in the page cache", "tenth": "mapped, a tenth in memory"}
    for name, own in found.items():
        every = " ".join(f"{value:.2f}" for value in own["seconds"])
        ratio = statistics.median(a / b for a, b in zip(in_memory, own["seconds"], strict=True))
        read = statistics.median(own["read"]) / 1e6
        lines.append(
            f"| {words[name]} | {statistics.median(own['seconds']):.2f} ({every}) | {ratio:.2f} | {read:.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=6000)
    parser.add_argument("--picture-size", type=int, default=128)
    parser.add_argument("--volumes", type=int, default=160)
    parser.add_argument("--volume-size", type=int, default=128)
    parser.add_argument("--patch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100, help="of a round on pictures; a fifth of them on patches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--folder", type=Path, default=None, help="on a real disk; default: the temporary folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Images larger than memory", "",
        "`python benchmarks/large_data.py`: its first lines say what was done. Batches of 6 pictures or of 2 patches, "
        "U-Net of width 16 and depth 3, one thread.", "",
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}, PyTorch {torch.__version__}.",
    ]  # fmt: skip
    for kind in ("pictures", "volumes"):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            for part in ("images", "labels"):
                (folder / "f/a" / part).mkdir(parents=True)
            if kind == "pictures":
                write_pictures(folder / "f/a", options.pictures, options.picture_size)
                plan = plan_for(folder / "f", 2, None, options.steps)
                title = f"Pictures of {options.picture_size}x{options.picture_size}, three channels"
            else:
                write_volumes(folder / "f/a", options.volumes, options.volume_size)
                plan = plan_for(folder / "f", 3, options.patch, max(1, options.steps // 5))
                title = f"Patches of {options.patch}^3 from volumes of {options.volume_size}^3"
            lines += measure(title, plan, folder, options.rounds)
            print("\n".join(lines[-9:]), flush=True)
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
