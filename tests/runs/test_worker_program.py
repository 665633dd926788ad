"""Workers that are started anew, as on GPUs: they open the run by themselves, and give the same result."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic import run
from polyclinic.core.tensor_files import load_tensors
from polyclinic.recipe.files import load_recipe
from support import assert_same


def test_programs_that_open_the_run_give_the_weights_of_one_process(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyclinic.engines.workers.engine.can_fork", lambda *_: False)
    results = {}
    for engine in ("inprocess", "workers"):
        settings = [f"engine.name={engine}", "engine.workers=2", "training.rounds=2"]
        out = tmp_path / engine
        run(load_recipe(tiny_recipe_file, settings, method="fedbn"), out=out)
        results[engine] = {
            str(file.relative_to(out)): load_tensors(file)[0] for file in sorted(out.rglob("*.safetensors"))
        }
        results[f"{engine} cases"] = (out / "cases.csv").read_text()
    assert results["inprocess cases"] == results["workers cases"]
    assert results["inprocess"].keys() == results["workers"].keys()
    for file, tensors in results["inprocess"].items():
        assert_same(tensors, results["workers"][file])
