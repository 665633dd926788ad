"""Masks for new images: on the image, in its format, from the model that was tested."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence
from torch import nn

import polyclinic
from dicom_support import series_uid, write_series
from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors, save_tensors
from polyclinic.federation.workspace import build_workspace
from polyclinic.recipe.files import load_recipe
from polyclinic.runs.predict import load_model, make_masks, predict
from support import write_tiny_federation, write_tiny_recipe, write_volumes

Finished = Callable[..., Path]
# Axes swapped, one of them backwards, and turned by some degrees: nothing about this scanner is straight.
_ANGLE = 0.1
_TURN = np.array([[np.cos(_ANGLE), -np.sin(_ANGLE), 0], [np.sin(_ANGLE), np.cos(_ANGLE), 0], [0, 0, 1]])
OBLIQUE = np.eye(4)
OBLIQUE[:3, :3] = _TURN @ np.array([[0, -1.5, 0], [0, 0, 2.0], [1.0, 0, 0]])
OBLIQUE[:3, 3] = (40, -12, 7)


@torch.no_grad()
def threshold(network: nn.Module) -> dict[str, torch.Tensor]:
    """Weights with which the U-Net passes the image on and calls everything above 0.5 foreground."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            module.weight.zero_()
            module.weight[(0, 0, *(size // 2 for size in module.kernel_size))] = 1
            module.bias.zero_()  # type: ignore[union-attr]
            last = module
        elif isinstance(module, nn.ConvTranspose2d | nn.ConvTranspose3d):
            module.weight.zero_()
    last.weight.zero_()
    last.weight[1, 0] = 100
    last.bias[0] = 50  # type: ignore[index]
    return {f"weights/{name}": tensor.clone() for name, tensor in network.state_dict().items()}


def thresholding_run(folder: Path, federation: Path, *overrides: str) -> Path:
    recipe = write_tiny_recipe(folder / "r.toml", federation, rounds=1)
    run = polyclinic.run(recipe, out=folder / "run", overrides=overrides).folder
    workspace, _ = load_model(run, site=None, part=None, model=None)
    weights = threshold(build_workspace(load_recipe(run / "recipe.toml"), workspace.task).network)
    for name in ("server", "best"):
        path = run / "checkpoints" / "all" / f"{name}.safetensors"
        save_tensors(path, weights, load_tensors(path)[1])
    return run


def test_a_png_mask_lies_on_its_image(tmp_path: Path) -> None:
    federation = write_tiny_federation(tmp_path / "fed")
    run = thresholding_run(tmp_path, federation)
    written = predict(run, federation / "north", tmp_path / "masks")
    assert written == [tmp_path / "masks" / f"case{number}.png" for number in range(5)]
    for path in written:
        image = np.asarray(Image.open(federation / "north" / "images" / path.name)).astype(float)
        mask = Image.open(path)
        assert mask.mode == "L"
        scaled = (image - image.min()) / (image.max() - image.min())
        np.testing.assert_array_equal(np.asarray(mask), scaled > 0.5)
        assert np.asarray(mask).any()


def test_a_picture_of_another_size_gets_a_mask_of_its_own_size(tmp_path: Path) -> None:
    run = thresholding_run(tmp_path, write_tiny_federation(tmp_path / "fed"))
    image = np.full((40, 56), 20, np.uint8)
    image[5:25, 30:50] = 220
    Image.fromarray(image).save(tmp_path / "new.jpg", quality=95)
    (path,) = predict(run, tmp_path / "new.jpg", tmp_path / "masks")
    assert path == tmp_path / "masks" / "new.png"
    mask, truth = np.asarray(Image.open(path)) == 1, image > 100
    assert mask.shape == image.shape
    assert 2 * (mask & truth).sum() / (mask.sum() + truth.sum()) > 0.85


@pytest.mark.parametrize("dims", [3, 2], ids=["volumes", "slices"])
@pytest.mark.parametrize("affine", [np.diag([1.0, 1.0, 3.0, 1.0]), OBLIQUE], ids=["straight", "oblique"])
def test_a_nifti_mask_keeps_affine_and_lies_on_its_volume(tmp_path: Path, dims: int, affine: np.ndarray) -> None:
    """Trained on straight volumes; those to predict come from another scanner."""
    federation = write_volumes(tmp_path / "fed", np.diag([1.0, 1.0, 3.0, 1.0]), dims)
    run = thresholding_run(tmp_path, federation)
    shape = (10, 8, 12) if affine is OBLIQUE else (8, 12, 10)  # the same grid once the axes are in order
    others = write_volumes(tmp_path / "new", affine, dims, shape, sites="z", count=2)
    written = predict(run, others / "z" / "images", tmp_path / "masks")
    assert [path.name for path in written] == ["v0.nii.gz", "v1.nii.gz"]
    for path in written:
        mask, image = nibabel.load(path), nibabel.load(others / "z" / "images" / path.name)
        label = nibabel.load(others / "z" / "labels" / path.name)
        np.testing.assert_allclose(mask.affine, image.affine, atol=1e-6)
        assert mask.get_data_dtype() == np.uint8
        found, truth = np.asarray(mask.dataobj) == 1, np.asarray(label.dataobj) == 1
        assert found.shape == shape
        np.testing.assert_array_equal(found, truth)


def test_a_dicom_series_gets_the_mask_of_the_same_volume_as_nifti(tmp_path: Path) -> None:
    """Two series of one export, one of them oblique; a third one lacks a slice and stops nothing."""
    straight = np.diag([1.0, 1.0, 3.0, 1.0])
    run = thresholding_run(tmp_path, write_volumes(tmp_path / "fed", straight))
    export, told = tmp_path / "Doe^Jane", []
    for number, affine in enumerate((straight, OBLIQUE)):
        shape = (10, 8, 12) if affine is OBLIQUE else (8, 12, 10)
        others = write_volumes(tmp_path / f"new{number}", affine, shape=shape, sites="z", count=1)
        path = others / "z" / "images" / "v0.nii.gz"
        volume = np.round(np.asarray(nibabel.load(path).dataobj) * 10)  # DICOM holds whole numbers
        nibabel.save(nibabel.Nifti1Image(volume.astype(np.int16), affine), path)
        write_series(export / f"series {number}", volume, affine, number, rescale=0.5)
    write_series(export / "broken", volume, OBLIQUE, 2)[4].unlink()
    outcome = make_masks(run, export, tmp_path / "masks", warn=told.append)
    assert list(outcome.masks.values()) == [tmp_path / "masks" / f"{uid}.nii.gz" for uid in outcome.masks]
    assert set(outcome.masks) == {series_uid(0), series_uid(1)}
    assert "lacks slices" in outcome.failed[series_uid(2)]
    assert told == []
    for number in range(2):
        (plain,) = predict(run, tmp_path / f"new{number}" / "z", tmp_path / f"plain{number}")
        mask, other = nibabel.load(outcome.masks[series_uid(number)]), nibabel.load(plain)
        assert np.asarray(other.dataobj).any()
        np.testing.assert_array_equal(points(mask), points(other))
    assert all("Doe" not in str(path) for path in (tmp_path / "masks").iterdir())


def points(mask: nibabel.Nifti1Image) -> np.ndarray:
    """Where in the scanner the foreground is: the same, whichever way the voxels are stored."""
    indices = np.argwhere(np.asarray(mask.dataobj) == 1)
    return np.unique(np.round(indices @ mask.affine[:3, :3].T + mask.affine[:3, 3], 2) + 0.0, axis=0)


@pytest.mark.parametrize("kind", ["volume", "slices", "picture"])
def test_the_largest_probability_is_the_mask(tmp_path: Path, kind: str) -> None:
    """On the image's own grid, which is not the network's; what a crop cut off is background."""
    if kind == "picture":
        federation, crop = write_tiny_federation(tmp_path / "fed"), "data.crop=[12,12]"
        image = np.random.default_rng(0).integers(0, 255, (20, 26), np.uint8)
        Image.fromarray(image).save(tmp_path / "new.png")
    else:
        dims = 3 if kind == "volume" else 2
        federation = write_volumes(tmp_path / "fed", np.diag([1.0, 1.0, 3.0, 1.0]), dims)
        crop = "data.crop=[8,6,8]" if dims == 3 else "data.crop=[8,6]"
        write_volumes(tmp_path / "other", OBLIQUE, dims, (10, 8, 12), sites="z", count=1)
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    run = polyclinic.run(recipe, out=tmp_path / "run", overrides=[crop]).folder
    new = tmp_path / "new.png" if kind == "picture" else tmp_path / "other" / "z"
    outcome = make_masks(run, new, tmp_path / "both", probabilities=True)
    (mask,), (probabilities,) = outcome.masks.values(), outcome.probabilities.values()
    (alone,) = predict(run, new, tmp_path / "alone")
    assert mask.read_bytes() == alone.read_bytes()
    if kind == "picture":
        assert probabilities.name == "new.probabilities.tif"
        pages = Image.open(probabilities)
        found = np.stack([np.asarray(page.copy()) for page in ImageSequence.Iterator(pages)])
        classes = np.asarray(Image.open(mask))
    else:
        assert probabilities.name == "v0.probabilities.nii.gz"
        stored = nibabel.load(probabilities)
        np.testing.assert_allclose(stored.affine, nibabel.load(mask).affine, atol=1e-6)
        found, classes = np.moveaxis(np.asarray(stored.dataobj), -1, 0), np.asarray(nibabel.load(mask).dataobj)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.sum(0), 1, atol=1e-5)
    np.testing.assert_array_equal(found.argmax(0), classes)
    assert (found[0] == 1).any()  # cut off
    assert ((found > 0.01) & (found < 0.99)).any()  # no mask in disguise


def test_masks_are_not_overwritten_without_being_asked(
    finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    run, images, out = finished(), tiny_federation / "south", tmp_path / "masks"
    written = predict(run, images, out)
    bytes_before = [path.read_bytes() for path in written]
    written[1].write_bytes(b"a radiologist's corrections")
    written[2].unlink()
    with pytest.raises(PolyclinicError, match=r"holds 3 of the 4 files already \(case0.png, case1.png, case3.png\)"):
        predict(run, images, out)
    assert predict(run, images, out, skip_existing=True) == [written[2]]
    assert written[1].read_bytes() == b"a radiologist's corrections"
    assert predict(run, images, out, skip_existing=True) == []
    assert predict(run, images, out, overwrite=True) == written
    assert [path.read_bytes() for path in written] == bytes_before
    outcome = make_masks(run, images, out, skip_existing=True, probabilities=True)
    assert (len(outcome.masks), len(outcome.probabilities), outcome.skipped) == (0, 4, [])
    assert sorted(path.name for path in out.iterdir() if path.name.startswith(".")) == [".predicted-by.json"]


def test_masks_of_two_models_are_not_mixed(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    predict(finished(), tiny_federation / "south", tmp_path)
    (tmp_path / "case0.png").unlink()
    other = finished("fedavg", "training.optimizer=sgd")
    with pytest.raises(PolyclinicError, match=f"made with another model .{finished()}., .* would mix"):
        predict(other, tiny_federation / "south", tmp_path, skip_existing=True)
    assert not (tmp_path / "case0.png").exists()


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_damaged_image_does_not_stop_the_others(
    jobs: int, finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    images = shutil.copytree(tiny_federation / "south" / "images", tmp_path / "images")
    (images / "case1.png").write_bytes((images / "case1.png").read_bytes()[:60])
    outcome = make_masks(finished(), images, tmp_path / "masks", jobs=jobs)
    assert list(outcome.masks) == ["case0", "case2", "case3"]
    assert list(outcome.failed) == ["case1"]
    assert outcome.failed["case1"].startswith(f"{images / 'case1.png'}: cannot be read as png")
    with pytest.raises(PolyclinicError, match=r"^0 masks were written to .*; 1 could not be made: .*case1\.png"):
        predict(finished(), images, tmp_path / "masks", jobs=jobs, skip_existing=True)


def test_large_probabilities_are_warned_of(
    finished: Finished, tiny_federation: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyclinic.runs.predict._LARGE", 4 * 2 * 16 * 16 * 4 - 1)
    told: list[str] = []
    predict(finished(), tiny_federation / "south", tmp_path / "a", probabilities=True, warn=told.append)
    assert len(told) == 1
    assert "take up to 8.2 kB before compression, float32 for each of 2 classes" in told[0]
    monkeypatch.setattr("polyclinic.runs.predict._LARGE", 4 * 2 * 16 * 16 * 4)
    predict(finished(), tiny_federation / "south", tmp_path / "b", probabilities=True, warn=told.append)
    assert len(told) == 1


def dice_in_record(run: Path, site: str, **only: str) -> dict[str, float]:
    with (run / "cases.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "dice" and row["site"] == site]
    return {row["image"]: float(row["value"]) for row in rows if all(row[k] == v for k, v in only.items())}


def dice_of_masks(masks: Path, labels: Path) -> dict[str, float]:
    found = {}
    for path in sorted(masks.glob("*.png")):
        mask, truth = (np.asarray(Image.open(p)) == 1 for p in (path, labels / path.name))
        total = mask.sum() + truth.sum()
        found[path.stem] = 2 * float((mask & truth).sum()) / total if total else 1.0
    return found


@pytest.mark.parametrize(
    ("method", "overrides", "site"),
    [
        ("fedavg", (), None),
        ("fedavg", (), "south"),
        ("fedavg", ("training.optimizer=sgd",), "south"),
        ("fedbn", (), "south"),
        ("local", (), "south"),
        ("central", (), None),
        ("fedavg", ("training.lr=1.0", "training.select=best"), None),
        ("fedavg", ("training.lr=1.0", "training.select=last"), None),
    ],
)
def test_masks_are_those_of_the_tested_model(
    method: str, overrides: tuple[str, ...], site: str | None, finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    run = finished(method, *overrides)
    predict(run, tiny_federation / "south", tmp_path, site=site)
    masks, record = dice_of_masks(tmp_path, tiny_federation / "south" / "labels"), dice_in_record(run, "south")
    assert record == pytest.approx({image: masks[image] for image in record})
    assert record


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_model_for_strangers_needs_no_site(
    method: str, finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    run = finished(method, "protocol.kind=leave-one-site-out")
    predict(run, tiny_federation / "north", tmp_path, part="without-north")
    masks = dice_of_masks(tmp_path, tiny_federation / "north" / "labels")
    assert masks == pytest.approx(dice_in_record(run, "north"))
    with pytest.raises(PolyclinicError, match=r"--part is needed\. It holds: without-north, without-south"):
        predict(run, tiny_federation / "north", tmp_path / "other")


def test_sites_have_models_of_their_own(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    # A shallow network learns enough in three rounds for two sites to differ.
    run = finished("local", "network.depth=1")
    for site in ("north", "south"):
        predict(run, tiny_federation / "north", tmp_path / site, site=site)
    one, other = (b"".join(p.read_bytes() for p in sorted((tmp_path / s).glob("*.png"))) for s in ("north", "south"))
    assert one != other
    with pytest.raises(
        PolyclinicError, match="local gives every site a model of its own; choose one with --site: north"
    ):
        predict(run, tiny_federation / "north", tmp_path / "none")


def test_what_cannot_be_predicted_gets_a_sentence(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    run, images = finished(), tiny_federation / "north" / "images"
    with pytest.raises(PolyclinicError, match=r"not a run folder \(it has no recipe.toml\)"):
        predict(tmp_path, images, tmp_path / "out")
    with pytest.raises(PolyclinicError, match="--site nort is not in this run, did you mean 'north'"):
        predict(run, images, tmp_path / "out", site="nort")
    with pytest.raises(PolyclinicError, match="holds the images, which masks would overwrite"):
        predict(run, images, images)
    with pytest.raises(PolyclinicError, match=r"typo\.png: no such file or folder"):
        predict(run, images / "typo.png", tmp_path / "out")
    nibabel.save(nibabel.Nifti1Image(np.zeros((16, 16, 4)), np.eye(4)), tmp_path / "volume.nii.gz")
    with pytest.raises(PolyclinicError, match=r"volume\.nii\.gz: is a volume among 2D images"):
        predict(run, tmp_path / "volume.nii.gz", tmp_path / "out")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)).save(tmp_path / "colour.png")
    with pytest.raises(PolyclinicError, match=r"colour\.png: has 3 channels, but the task has 1"):
        predict(run, tmp_path / "colour.png", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_model_says_so(tiny_recipe_file: Path, tiny_federation: Path, tmp_path: Path) -> None:
    run = polyclinic.run(tiny_recipe_file, out=tmp_path / "run", overrides=["training.rounds=1"]).folder
    for path in (run / "checkpoints" / "all").glob("*.safetensors"):
        path.unlink()
    with pytest.raises(PolyclinicError, match="there is no model yet; finish the run with --resume first"):
        predict(run, tiny_federation / "north", tmp_path / "out")
    (run / "checkpoints" / "all" / "best.safetensors").write_bytes(b"damaged")
    with pytest.raises(PolyclinicError, match=r"best\.safetensors: not a readable safetensors file"):
        predict(run, tiny_federation / "north", tmp_path / "out")


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_counts_images(jobs: int, finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    predict(finished(), tiny_federation / "south", tmp_path, jobs=jobs, progress=lambda *what: told.append(what))
    assert told == [(number, 4) for number in range(5)]
