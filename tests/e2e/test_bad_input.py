"""Bad input gets a sentence, not a traceback: which file or key, what was expected, what to do. Exit code 2."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image

import polyclinic
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import save_tensors
from support import Called, call, write_tiny_federation, write_tiny_recipe, write_volumes


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    return write_tiny_federation(tmp_path / "fed")


@pytest.fixture
def recipe(federation: Path) -> Path:
    return write_tiny_recipe(federation.parent / "recipe.toml", federation, rounds=1, local_epochs=1)


def refused(called: Called, *words: str) -> None:
    """One line of error, the last one, that holds all ``words``; nothing on stdout."""
    assert called.code == 2, called
    assert called.out == ""
    lines = called.err.splitlines()
    assert [line.startswith("error: ") for line in lines] == [False] * (len(lines) - 1) + [True], called.err
    assert "Traceback" not in called.err
    for word in words:
        assert word in lines[-1]
    assert lines[-1].rstrip()[-1] in ".?", "a sentence ends"


def run(recipe: Path, *more: object) -> Called:
    return call("run", recipe, "--out", recipe.parent / "run", *more)


def test_the_same_federation_without_a_fault_works(recipe: Path) -> None:
    """Guards all other tests of this file."""
    done = run(recipe)
    assert (done.code, done.out.splitlines()[-1]) == (0, f"Run folder: {recipe.parent / 'run'}")


def test_an_unknown_method(recipe: Path) -> None:
    refused(run(recipe, "--method", "fedavgg"), "'fedavgg' is not a method", "did you mean 'fedavg'?", "Known: augseg")
    assert not (recipe.parent / "run").exists()


def test_an_unknown_key_in_the_recipe_and_on_the_command_line(recipe: Path) -> None:
    refused(run(recipe, "--set", "training.round=3"), "unknown key 'training.round'", "did you mean 'rounds'?")
    recipe.write_text("sead = 1\n" + recipe.read_text())
    refused(run(recipe), "recipe.toml", "unknown key 'sead'", "did you mean 'seed'?")


def test_an_impossible_value(recipe: Path) -> None:
    refused(run(recipe, "--set", "training.rounds=0"), "training.rounds = 0", "greater than or equal to 1")


def test_a_quorum_that_no_round_can_reach(recipe: Path) -> None:
    refused(
        run(recipe, "--set", "training.quorum=1.5"),
        "training.quorum: it must be a share up to 1, or a whole number of sites.",
    )
    words = ("training.quorum = 3", "a round has 2 sites", "give at most 2, or a share up to 1")
    refused(run(recipe, "--set", "training.quorum=3"), *words)
    refused(run(recipe, "--set", "training.quorum=3", "--engine", "flower", "--set", "data.size=[16,16]"), *words)
    left_out = ("--set", "protocol.kind=leave-one-site-out", "--set", "training.quorum=2")
    refused(run(recipe, *left_out), "a round has 1 site", "give a share up to 1")
    assert not (recipe.parent / "run").exists()
    server = ("server", recipe, "--insecure", "--out", recipe.parent / "run", "--set", "data.size=[16,16]")
    refused(call(*server, "--sites", "a,b", "--set", "training.quorum=3"), *words)
    assert run(recipe, "--set", "training.quorum=3", "--method", "central").code == 0, "it has no sites"


def test_a_recipe_that_is_no_recipe(recipe: Path) -> None:
    refused(call("run", "demo-nucleii"), "demo-nucleii: neither a recipe file nor", "did you mean 'demo-nuclei'?")
    recipe.write_text("federation = \n")
    refused(run(recipe), "recipe.toml: not a readable TOML file", "line 1")


def test_a_network_that_does_not_fit_into_memory(recipe: Path) -> None:
    refused(run(recipe, "--set", "network.width=10000000000"), "network.width = 10000000000", "too large", "smaller")
    assert not (recipe.parent / "run").exists()


def test_a_missing_federation(recipe: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    refused(run(recipe, "--set", f"federation={gone}"), f"{gone}: no such folder", "one folder for each site")


def test_a_shipped_recipe_without_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (f"{tmp_path / 'data' / 'histology'}: no such folder", "--set federation=FOLDER", "fedbcs-histology-small")
    refused(call("run", "fedbcs-histology"), *words)
    refused(call("compare", "fedbcs-histology", "--methods", "fedavg", "--out", "grid"), *words)
    refused(call("explain", "fedbcs", "-r", "fedbcs-histology"), *words)
    with pytest.raises(PolyclinicError, match="take the recipe fedbcs-histology-small, which needs none"):
        polyclinic.run("fedbcs-histology")


def test_a_site_without_images(recipe: Path, federation: Path) -> None:
    for path in (federation / "south" / "images").iterdir():
        path.unlink()
    refused(run(recipe), f"{federation / 'south'}: site without images", "put them into", "south/images")


def test_a_mask_with_an_undeclared_label(recipe: Path, federation: Path) -> None:
    path = federation / "south" / "labels" / "case2.png"
    Image.fromarray(np.full((16, 16), 7, np.uint8)).save(path)
    refused(run(recipe), f"{path}: holds the undeclared label values 7", "expected 0 to 1 (background, disc)")


@pytest.mark.parametrize("damage", ["cut", "nonsense"])
@pytest.mark.parametrize("number", [0, 3], ids=["first", "later"])
def test_a_corrupt_png(recipe: Path, federation: Path, damage: str, number: int) -> None:
    path = federation / "south" / "images" / f"case{number}.png"
    path.write_bytes(path.read_bytes()[:120] if damage == "cut" else b"this is no picture")
    refused(run(recipe), f"{path}: cannot be read as png", "replace the file or take it out")


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """The recipe of a federation of NIfTI volumes."""
    federation = write_volumes(tmp_path / "volumes", np.eye(4), shape=(8, 8, 8))
    return write_tiny_recipe(tmp_path / "recipe.toml", federation, rounds=1, local_epochs=1)


@pytest.mark.parametrize("damage", ["cut", "nonsense"])
def test_a_corrupt_nifti(volumes: Path, damage: str) -> None:
    path = volumes.parent / "volumes" / "b" / "images" / "v1.nii.gz"
    path.write_bytes(path.read_bytes()[:400] if damage == "cut" else b"this is no volume")
    refused(run(volumes), f"{path}: cannot be read as nii.gz", "replace the file or take it out")


def test_an_image_with_nan(volumes: Path) -> None:
    path = volumes.parent / "volumes" / "b" / "images" / "v1.nii.gz"
    image = nibabel.load(path).get_fdata().astype(np.float32)
    image[1, 2, 3] = np.nan
    nibabel.save(nibabel.Nifti1Image(image, np.eye(4)), path)
    refused(run(volumes), f"{path}: holds NaN or infinite values", "replace them or take the image out")


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_site_without_a_label_where_one_is_needed(recipe: Path, federation: Path, method: str) -> None:
    for path in (federation / "south" / "labels").iterdir():
        path.unlink()
    refused(run(recipe, "--method", method), "Site 'south' has no labelled training image", "add labels", "data.sites")
    assert not (recipe.parent / "run" / "events.jsonl").exists()


@pytest.mark.parametrize("damage", [b"", b"nonsense", None], ids=["empty", "nonsense", "cut"])
def test_an_unreadable_checkpoint(recipe: Path, damage: bytes | None) -> None:
    assert run(recipe).code == 0
    folder = recipe.parent / "run"
    (folder / "summary.json").unlink()
    (folder / "checkpoints" / "all" / "tested.json").unlink()
    path = folder / "checkpoints" / "all" / "server.safetensors"
    path.write_bytes(path.read_bytes()[:-7] if damage is None else damage)
    refused(
        run(recipe, "--resume"), f"{path}: not a readable safetensors file", "restore it from a copy or start a new"
    )


def test_a_folder_that_already_holds_a_run(recipe: Path) -> None:
    assert run(recipe).code == 0
    refused(run(recipe), f"{recipe.parent / 'run'}: already holds a run", "--resume", "--out")


GRID = ("--methods", "fedavg", "--seeds", "1", "--jobs", "1")
VARIED = ("--vary", "training.lr=0.01,0.02")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_folder_that_holds_another_kind_of_results(recipe: Path, federation: Path) -> None:
    out = {kind: recipe.parent / kind for kind in ("run", "grid", "study")}
    commands: dict[str, tuple[object, ...]] = {
        "run": ("run", recipe),
        "grid": ("compare", recipe, *GRID),
        "study": ("study", recipe, *VARIED, *GRID),
    }
    for kind, command in commands.items():
        assert call(*command, "--out", out[kind]).code == 0
    before = {kind: contents(folder) for kind, folder in out.items()}
    words = {"run": "a single run", "grid": "a comparison", "study": "a study"}
    for kind, command in {**commands, "ablate": ("ablate", recipe, "-m", "fedprox", "--seeds", "1")}.items():
        for other in out.keys() - {kind} - ({"grid"} if kind == "ablate" else set()):
            refused(call(*command, "--out", out[other]), f"{out[other]}: holds {words[other]}", "--out")
        refused(call(*command, "--out", federation), f"{federation}: is a folder of images", "--out")
    server = ("server", recipe, "--insecure", "--sites", "north", "--set", "data.size=[16,16]")
    for folder in (out["grid"], federation):
        failed = call(*server, "--out", folder)
        assert (failed.code, f"error: {folder}: " in failed.err) == (2, True), failed
    assert {kind: contents(folder) for kind, folder in out.items()} == before
    assert not (federation / ".lock").exists()
    for kind in ("grid", "study"):
        assert call(*commands[kind], "--out", out[kind]).code == 0, "the same kind goes on"
    assert call("ablate", recipe, "-m", "fedprox", "--seeds", "1", "--jobs", "1", "--out", out["grid"]).code == 0


def test_a_folder_with_a_recipe_of_ones_own(recipe: Path) -> None:
    text, folder = recipe.read_text(), recipe.parent
    refused(call("run", recipe, "--out", folder), f"{recipe}: is a recipe without a run", "choose another folder")
    assert recipe.read_text() == text
    refused(call("report", folder), f"{folder}: holds no run (recipe.toml, versions.json)", "--out")
    refused(call("watch", folder), f"{folder}: not a run folder", "a recipe.toml, but no run of it")
    refused(call("watch", folder, "--web", "--no-open"), f"{folder}: holds no run")


def test_resuming_with_other_settings(recipe: Path) -> None:
    assert run(recipe).code == 0
    changed = run(recipe, "--resume", "--set", "training.lr=0.5", "--set", "network.norm=instance")
    refused(changed, "recipe.toml: differs", "in network.norm, training.lr;", "--out")


def failing(code: int, real: Callable[..., Any] | None = None, after: int = 0) -> Callable[..., Any]:
    """A function that works ``after`` times and then meets an error of the operating system."""
    left = [after]

    def act(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            return real(*arguments, **more) if real else None
        raise OSError(code, os.strerror(code))

    return act


def test_a_folder_that_cannot_be_written(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, permissions do not bind: the operating system's answer is put in its place."""
    monkeypatch.setattr(Path, "mkdir", failing(errno.EROFS))
    refused(
        run(recipe), f"{recipe.parent / 'run'}", "cannot be written (Read-only file system)", "choose another folder"
    )


@pytest.mark.parametrize("out", ["recipe.toml", "recipe.toml/below"])
def test_a_folder_below_a_file(recipe: Path, out: str) -> None:
    refused(call("run", recipe, "--out", recipe.parent / out), "cannot be written", "choose another folder")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The scores of a run that never met a full disk, after exactly as many files as the test below fails at."""
    folder = tmp_path_factory.mktemp("whole")
    recipe = write_tiny_recipe(folder / "r.toml", write_tiny_federation(folder / "fed"), rounds=1, local_epochs=1)
    written = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", written.append)
        assert call("run", recipe, "--out", folder / "run").code == 0
    assert len(written) == 13
    return (folder / "run" / "cases.csv").read_text()


@pytest.mark.parametrize("after", range(13))
def test_a_full_disk_at_any_moment_and_room_again(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, whole: str, after: int
) -> None:
    """Folder, split, states of sites, checkpoints, scores, summary: twelve files are written."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(errno.ENOSPC, os.fsync, after))
        refused(run(recipe), "cannot be written (No space left on device)", "free some space")
    assert not list((recipe.parent / "run").rglob("*.part"))
    assert run(recipe, "--resume").code == 0
    assert (recipe.parent / "run" / "cases.csv").read_text() == whole


def test_a_full_disk_while_tensors_are_saved(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safetensors.torch.save_file", failing(errno.ENOSPC))
    refused(run(recipe), ".safetensors: cannot be written (No space left on device)", "free some space")


def test_a_write_that_the_operating_system_refuses(tmp_path: Path) -> None:
    """A real refusal, by the limit on the size of files, in place of a disk that is full."""
    import torch

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(PolyclinicError, match=r"big\.safetensors: cannot be written"):
            save_tensors(tmp_path / "big.safetensors", {"a": torch.zeros(20_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
