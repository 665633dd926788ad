from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import polyclinic
from polyclinic.core.tensor_files import load_tensors, save_tensors
from polyclinic.federation.observer import Observer
from support import call

Finished = Callable[..., Path]


def test_a_folder_and_a_file_get_masks(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    images = tiny_federation / "south" / "images"
    done = call("predict", finished(), images, "-o", tmp_path / "many")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"4 masks written to {tmp_path / 'many'}\n"
    done = call("predict", finished(), images / "case1.png", "-o", tmp_path / "one")
    assert done.out == f"1 mask written to {tmp_path / 'one'}\n"
    one, many = (np.asarray(Image.open(tmp_path / name / "case1.png")) for name in ("one", "many"))
    np.testing.assert_array_equal(one, many)
    assert set(np.unique(one)) <= {0, 1}


def test_the_model_can_be_chosen(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished("fedavg", "training.select=best"), tmp_path / "run")
    best = run / "checkpoints" / "all" / "best.safetensors"
    tensors, about = load_tensors(best)
    save_tensors(best, {n: -t if "classifier" in n else t for n, t in tensors.items()}, about)  # two other models
    masks = {}
    for model in ("best", "last"):
        assert call("predict", run, tiny_federation / "north", "-o", tmp_path / model, "--model", model).code == 0
        masks[model] = [path.read_bytes() for path in sorted((tmp_path / model).glob("*.png"))]
    assert masks["best"] != masks["last"]


def test_an_unfinished_training_is_warned_of(tiny_recipe_file: Path, tiny_federation: Path, tmp_path: Path) -> None:
    class AfterTwo(Observer):
        def on_round(self, event: dict[str, Any]) -> None:
            if event["round"] == 2:
                raise KeyboardInterrupt

    out, images = tmp_path / "run", tiny_federation / "south"
    with pytest.raises(KeyboardInterrupt):
        polyclinic.run(tiny_recipe_file, out=out, observer=AfterTwo())
    done = call("predict", out, images, "-o", tmp_path / "masks")
    assert done.code == 0
    assert done.err == (
        f"warning: {out}: this training is not finished, 2 of 3 rounds are done; "
        "go on with --resume for the final model.\n"
    )
    polyclinic.run(tiny_recipe_file, out=out, resume=True)
    assert call("predict", out, images, "-o", tmp_path / "masks", "--overwrite").err == ""


def test_wrong_calls_get_a_sentence(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    images, out = tiny_federation / "south", tmp_path / "out"
    for arguments, words in [
        ((finished(), images, "--model", "first"), "--model first: expected best or last."),
        (
            (finished("fedbn"), images),
            "fedbn gives every site a model of its own; choose one with --site: north, south.",
        ),
        (
            (finished(), images, "--site", "nort"),
            f"{finished()}: --site nort is not in this run, did you mean 'north'?",
        ),
        ((finished(), images, "--part", "fold-1"), f"{finished()}: --part fold-1 is not in this run."),
        ((tmp_path, images), f"{tmp_path}: not a run folder (it has no recipe.toml)"),
        ((finished(), tmp_path / "none"), f"{tmp_path / 'none'}: no such file or folder"),
    ]:
        done = call("predict", *arguments, "-o", out)
        assert done.code == 2
        assert done.err.startswith(f"error: {words}"), done.err
        assert done.err.count("\n") == 1
    assert not out.exists()
