from __future__ import annotations

import json
import shlex
import shutil
import sys
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


def test_a_folder_that_cannot_be_made_is_said_before_any_work(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("polyclinic.runs.predict._carry_out", lambda *_: pytest.fail("hours of work for nothing"))
    for out in (tmp_path / "file", tmp_path / "file" / "masks"):
        done = call("predict", finished(), tiny_federation / "south", "-o", out)
        assert (done.code, done.out) == (2, "")
        assert f"{out}: cannot be written" in done.err
    assert (tmp_path / "file").read_text() == "mine"


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


def test_json_lists_what_was_written_what_was_there_and_what_failed(
    finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    images, out = shutil.copytree(tiny_federation / "south" / "images", tmp_path / "images"), tmp_path / "out"
    (images / "case3.png").write_bytes(b"no picture")
    arguments = ("predict", finished(), images, "-o", out, "--json")
    done = call(*arguments)
    assert done.code == 2
    assert done.err.startswith(f"error: 3 masks were written to {out}; 1 could not be made: {images / 'case3.png'}: ")
    found = json.loads(done.out)
    assert (found["out"], found["classes"], found["skipped"]) == (str(out), ["background", "disc"], [])
    assert found["written"] == [
        {"image": f"case{number}", "mask": str(out / f"case{number}.png"), "probabilities": None} for number in range(3)
    ]
    assert [entry["image"] for entry in found["failed"]] == ["case3"]
    assert "cannot be read as png" in found["failed"][0]["problem"]
    (images / "case3.png").unlink()
    (out / "case0.png").unlink()
    done = call(*arguments, "--skip-existing", "--probabilities", "--jobs", 2)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [Path(entry["probabilities"]).name for entry in found["written"]] == [
        f"case{number}.probabilities.tif" for number in range(3)
    ]
    assert [entry["mask"] for entry in found["written"]] == [str(out / "case0.png"), None, None]
    assert json.loads(call(*arguments, "--skip-existing").out)["skipped"] == ["case0", "case1", "case2"]


def test_masks_that_are_there_are_kept_unless_asked(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    arguments = ("predict", finished(), tiny_federation / "south", "-o", tmp_path)
    assert call(*arguments, "--probabilities").out == (
        f"4 masks written to {tmp_path}, probabilities of 4 beside them (classes: 0 background, 1 disc)\n"
    )
    done = call(*arguments)
    assert done.code == 2
    assert done.err.startswith(
        f"error: {tmp_path}: holds 4 of the 4 files already (case0.png, case1.png, case2.png and"
    )
    (tmp_path / "case1.png").unlink()
    assert call(*arguments, "--skip-existing").out == f"1 mask written to {tmp_path}; 3 were there already\n"
    assert call(*arguments, "--overwrite").out == f"4 masks written to {tmp_path}\n"
    assert call(*arguments, "--overwrite", "--skip-existing").err.startswith("error: --overwrite and --skip-existing:")


def test_ctrl_c_says_how_to_go_on_and_that_works(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyclinic.runs import prediction_processes

    real = prediction_processes.carry_out

    def interrupted(workspace: Any, federation: Any, wanted: Any) -> Any:
        if wanted.item.name == "case2":
            (out / ".case2.png.12345.part").write_bytes(b"half a mask")  # as a killed process leaves it
            raise KeyboardInterrupt
        return real(workspace, federation, wanted)

    out = tmp_path / "out"
    arguments = ["predict", finished(), tiny_federation / "south", "-o", out, "--jobs", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(prediction_processes, "carry_out", interrupted)
        done = call(*arguments, "--overwrite")
    assert done.code == 130
    assert sorted(path.name for path in out.iterdir()) == [".predicted-by.json", "case0.png", "case1.png"]
    again = shlex.join(["polyclinic", *map(str, arguments), "--skip-existing"])
    assert done.err == f"Interrupted. The masks in {out} are whole; go on with:\n  {again}\n"
    done = call(*shlex.split(again)[1:])
    assert done.out == f"2 masks written to {out}; 2 were there already\n"


def test_without_a_terminal_there_is_a_line_now_and_then(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["polyclinic.cli.predict"], "_BETWEEN_LINES", 0.0)
    done = call("predict", finished(), tiny_federation / "south", "-o", tmp_path)
    assert done.err.splitlines() == [f"segmented {number} of 4 images" for number in range(1, 4)]


def test_python_has_the_same(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    written = polyclinic.predict(finished(), tiny_federation / "south", tmp_path / "python", jobs=2)
    call("predict", finished(), tiny_federation / "south", "-o", tmp_path / "command")
    assert [path.name for path in written] == [f"case{number}.png" for number in range(4)]
    for path in written:
        assert path.read_bytes() == (tmp_path / "command" / path.name).read_bytes()
