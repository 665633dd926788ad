"""Records of runs: kept without weights or paths, restored as finished runs, and enough to recompute the tables."""

from __future__ import annotations

import io
import lzma
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from polyclinic.recipe.files import load_recipe
from polyclinic.runs.grid_finished import is_finished
from polyclinic.runs.grid_plan import GridRun, plan_grid

REAL = Path(__file__).resolve().parents[2] / "benchmarks" / "real"


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REAL))
    sys.modules.pop("records", None)
    import records

    return records


@pytest.fixture
def kept(
    finished: Callable[..., Path],
    tiny_recipe_file: Path,
    records: ModuleType,
    tmp_path: Path,
) -> GridRun:
    """A run of a grid that was recorded on another machine and restored here."""
    plan = plan_grid(load_recipe(tiny_recipe_file), ("fedavg",), (0,), tmp_path / "there" / "grid")
    (run,) = plan.runs()
    shutil.copytree(finished("fedavg"), run.folder)
    plan.save()
    unfinished = run.folder.with_name("fedavg-seed1")
    shutil.copytree(run.folder, unfinished)
    (unfinished / "summary.json").unlink()
    assert records.keep(tmp_path / "there", tmp_path / "runs.tar.xz") == 1
    records.restore(tmp_path / "runs.tar.xz", tmp_path / "here", Path(load_recipe(tiny_recipe_file).federation).parent)
    (restored,) = plan_grid(load_recipe(tiny_recipe_file), ("fedavg",), (0,), tmp_path / "here" / "grid").runs()
    return restored


def test_a_restored_run_is_a_finished_one(kept: GridRun, finished: Callable[..., Path]) -> None:
    assert is_finished(kept)
    for name in ("summary.json", "cases.csv", "events.jsonl", "split.csv"):
        assert (kept.folder / name).read_bytes() == (finished("fedavg") / name).read_bytes()
    assert sorted(path.name for path in kept.grid.iterdir()) == ["fedavg-seed0", "grid.json"], (
        "the other one had no end"
    )


def test_neither_weights_nor_paths_are_kept(kept: GridRun, records: ModuleType, tmp_path: Path) -> None:
    assert not list(kept.folder.rglob("*.safetensors"))
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress((tmp_path / "runs.tar.xz").read_bytes()))) as tar:
        recipe = tar.extractfile("grid/fedavg-seed0/recipe.toml")
        assert recipe is not None
        assert 'federation = "tiny"' in recipe.read().decode()
    records.keep(tmp_path / "there", tmp_path / "again.tar.xz")
    assert (tmp_path / "again.tar.xz").read_bytes() == (tmp_path / "runs.tar.xz").read_bytes()


def test_what_is_there_stays(kept: GridRun, records: ModuleType, tmp_path: Path) -> None:
    (kept.folder / "cases.csv").write_text("newer")
    records.restore(tmp_path / "runs.tar.xz", tmp_path / "here", tmp_path)
    assert (kept.folder / "cases.csv").read_text() == "newer"


@pytest.mark.parametrize("name", ["../outside", "grid/../../outside"])
def test_no_record_leads_out_of_the_folder(name: str, records: ModuleType, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    (tmp_path / "bad.tar.xz").write_bytes(lzma.compress(packed.getvalue()))
    with pytest.raises(AssertionError, match="leads out of the folder"):
        records.restore(tmp_path / "bad.tar.xz", tmp_path / "here", tmp_path)
    assert not (tmp_path / "outside").exists()
