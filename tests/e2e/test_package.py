"""The wheel holds what a user needs: code, types, recipes, the command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    if find_spec("hatchling") and find_spec("build"):
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    else:
        # pip fetches the build backend into a place of its own; a machine without network cannot.
        options = ["--no-deps", "--quiet", "--retries", "0", "--timeout", "5", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode and "hatchling" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("the build backend hatchling is neither installed nor to be had from the network")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("polyclinic-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_is_complete(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "polyclinic").rglob("*.py")}
    assert modules <= names
    assert "polyclinic/py.typed" in names
    assets = ROOT / "src" / "polyclinic" / "report" / "page" / "assets"
    assert (
        {"polyclinic/report/page/assets/page.html"}
        <= {str(p.relative_to(ROOT / "src")) for p in assets.iterdir()}
        <= names
    )
    recipes = {f"polyclinic/recipes/{path.name}" for path in (ROOT / "recipes").glob("*.toml")}
    assert "polyclinic/recipes/demo-nuclei.toml" in recipes <= names
    assert not [name for name in names if name.startswith("tests")]


def test_the_wheel_names_command_licence_and_version(wheel: zipfile.ZipFile) -> None:
    import polyclinic

    about = next(name.rpartition("/")[0] for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert "polyclinic = polyclinic.cli:main" in wheel.read(f"{about}/entry_points.txt").decode()
    metadata = wheel.read(f"{about}/METADATA").decode()
    assert f"Version: {polyclinic.__version__}\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    assert any(name.startswith(f"{about}/licenses/LICENSE") for name in wheel.namelist())


def test_extras_and_dependencies_are_declared(wheel: zipfile.ZipFile) -> None:
    metadata = next(wheel.read(n).decode() for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in project["optional-dependencies"]:
        assert f"Provides-Extra: {extra}\n" in metadata
    for dependency in project["dependencies"]:
        assert f"Requires-Dist: {dependency}\n" in metadata
