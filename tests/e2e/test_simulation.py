"""Flower's simulation, for clusters: sites in Ray's actors give the weights that one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

import polyclinic
from polyclinic.core.tensor_files import load_tensors
from support import assert_same

pytest.importorskip("ray", reason="Ray is not installed: pip install 'polyclinic[simulation]'")


def test_a_simulation_gives_the_same_weights_and_scores(tiny_recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["training.rounds=2", "training.validate_every=2"]
    runs = {
        engine: polyclinic.run(
            tiny_recipe_file, out=tmp_path / engine, method="fedbn", overrides=[*overrides, f"engine.name={engine}"]
        ).folder
        for engine in ("simulation", "inprocess")
    }
    for file in ("server", "best"):
        one, other = (load_tensors(run / "checkpoints/all" / f"{file}.safetensors") for run in runs.values())
        assert_same(one[0], other[0])
        assert one[1] == other[1]
    assert len({(run / "cases.csv").read_text() for run in runs.values()}) == 1
    assert (runs["simulation"] / "sites" / "north" / "audit.jsonl").exists()
