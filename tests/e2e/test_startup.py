"""What a command imports: the start-up time of a process, without a clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support import write_volumes

# Packages that take from tenths of a second to several seconds, and that a plain run never needs.
HEAVY = (
    "monai", "matplotlib", "torch._dynamo", "torch._inductor", "sympy", "torchvision", "timm", "nibabel", "itk", "flwr",
    "grpc", "ray", "tensorboard", "mlflow", "pandas", "skimage", "cryptography", "requests",
)  # fmt: skip


def imported(command: list[str], *packages: str) -> list[str]:
    """Which of the packages are imported when a command of polyclinic ends."""
    code = f"""
import sys
from polyclinic.cli import main
sys.argv = ["polyclinic", *{command!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("imported:", *[name for name in {packages!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_a_run_on_pictures_imports_pytorch_and_little_else(tiny_recipe_file: Path, tmp_path: Path) -> None:
    command = ["run", str(tiny_recipe_file), "--out", str(tmp_path / "run"), "--set", "training.rounds=1"]
    quick = [*command, "--set", 'evaluation.metrics=["dice"]']
    assert imported(quick, "torch", "scipy", *HEAVY) == ["torch"]
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_prediction_imports_neither_monai_nor_pytorchs_compiler(
    finished: Callable[..., Path], tiny_federation: Path, tmp_path: Path
) -> None:
    images = next(path for path in tiny_federation.rglob("images") if path.is_dir())
    command = ["predict", str(finished()), str(images), "--out", str(tmp_path / "masks")]
    assert imported(command, "torch", *HEAVY) == ["torch"]


def test_volumes_in_the_wanted_orientation_and_size_need_no_monai(tmp_path: Path) -> None:
    federation = write_volumes(tmp_path / "volumes", np.diag([1.0, 2.0, 3.0, 1.0]))
    sizes = ["data.size=[8,12,10]", "network.depth=1", "network.width=2", "training.rounds=1"]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'federation = "{federation}"\n', encoding="utf-8")
    command = ["run", str(recipe), "--out", str(tmp_path / "run"), *(part for s in sizes for part in ("--set", s))]
    assert imported(command, "torch", *HEAVY) == ["torch", "nibabel"]


@pytest.mark.parametrize(
    ("module", "allowed"),
    [
        ("polyclinic.deploy.coordinator.gate", []),
        ("polyclinic.deploy.site.worker", []),
        ("polyclinic.deploy.site.supervisor", []),
        ("polyclinic.deploy.site.run_site", ["numpy"]),
        ("polyclinic.runs.live_source", []),
        ("polyclinic.data.check", ["numpy"]),
    ],
)
def test_programs_import_what_they_are_for(module: str, allowed: list[str]) -> None:
    """A site's and a coordinator's supervisor live for months, beside the process that trains."""
    code = f"import sys, {module}; print(*[n for n in {('numpy', 'torch', 'scipy', *HEAVY)!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == allowed
