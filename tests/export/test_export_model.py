"""Whole exports: which model, into which folder, and nothing left where the check fails."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyclinic.core.errors import PolyclinicError
from polyclinic.export import export_model as module
from polyclinic.export.export_model import export_model
from polyclinic.export.standalone.segment import Model
from polyclinic.runs.predict import predict
from support import write_tiny_recipe, write_volumes

Finished = Callable[..., Path]


def masks_agree(exported: Path, run: Path, images: Path, out: Path, **choice: Any) -> np.ndarray:
    """All masks of the exported model, which are those of ``predict``."""
    model = Model(exported)
    found = []
    for path, files in zip(predict(run, images, out, **choice), model.images(images), strict=True):
        found.append(model.segment(files))
        np.testing.assert_array_equal(found[-1], Image.open(path))
    return np.stack(found)


def test_the_model_of_a_site_is_its_own(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    run, masks = finished("local", "network.depth=1"), {}
    for site in ("north", "south"):
        done = export_model(run, "torchscript", out=tmp_path / site, site=site)
        assert done.chosen.site == site
        assert {name.partition("/")[0] for name in done.check.images} == {site}
        masks[site] = masks_agree(done.folder, run, tiny_federation / "north", tmp_path / f"{site}-own", site=site)
    assert (masks["north"] != masks["south"]).any()
    with pytest.raises(PolyclinicError, match="choose one with --site: north, south"):
        export_model(run, "torchscript", out=tmp_path / "none")


def test_best_last_and_parts_can_be_chosen(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    run = finished("fedavg", "protocol.kind=leave-one-site-out")
    done = export_model(run, "torchscript", out=tmp_path / "out", part="without-north", model="last")
    assert (done.chosen.part, done.chosen.model, done.chosen.round_number) == ("without-north", "last", 3)
    masks_agree(done.folder, run, tiny_federation / "north", tmp_path / "own", part="without-north", model="last")
    with pytest.raises(PolyclinicError, match="--part is needed"):
        export_model(run, "torchscript", out=tmp_path / "other")


@pytest.mark.parametrize("dims", [2, 3])
def test_volumes_and_a_sliding_window(dims: int, tmp_path: Path) -> None:
    from polyclinic import run

    federation = write_volumes(tmp_path / "fed", np.diag([1.0, 1.0, 3.0, 1.0]), dims)
    recipe = write_tiny_recipe(tmp_path / "r.toml", federation, rounds=1)
    patch = "data.patch=[8,8]" if dims == 2 else "data.patch=[8,8,8]"
    folder = run(recipe, out=tmp_path / "run", overrides=[patch, "data.spacing=[1.0,1.0,1.0]"]).folder
    done = export_model(folder, "torchscript", out=tmp_path / "out")
    assert done.check.kind == "test"
    assert done.check.passed
    model = Model(done.folder)
    for path in predict(folder, federation / "a", tmp_path / "own"):
        import nibabel

        wanted = np.asarray(nibabel.load(path).dataobj)
        np.testing.assert_array_equal(model.segment(federation / "a" / "images" / path.name), wanted)


SITE = "data.intensity=site"


def test_the_numbers_of_a_site_go_into_the_files(finished: Finished, tiny_federation: Path, tmp_path: Path) -> None:
    run, found, models = finished("fedavg", SITE), {}, []
    for site in ("north", "south"):
        done = export_model(run, "torchscript", out=tmp_path / site, site=site)
        assert done.check.kind == "test"
        found[site] = json.loads((done.folder / "model.json").read_text())["preprocessing"]["site_intensity"]
        kept = json.loads((run / "sites" / site / "all" / "intensity.json").read_text())
        assert found[site] == {name: kept[name] for name in ("mean", "deviation")}
        masks_agree(done.folder, run, tiny_federation / "north", tmp_path / f"{site}-own", site=site)
        models.append(Model(done.folder))
        card = (done.folder / "MODEL_CARD.md").read_text()
        assert f"scaled by the mean and deviation of the training images of {site}; these numbers are in" in card
        assert f"| mean | \\[{kept['mean'][0]}\\] |" in card
        assert "site_intensity" not in card
    assert found["north"] != found["south"]
    image = tiny_federation / "north" / "images" / "case0.png"
    north, south = (model.probabilities(image) for model in models)
    assert np.abs(north - south).max() > 0.01


def test_without_a_site_images_are_scaled_by_all_of_them_together(
    finished: Finished, tiny_federation: Path, tmp_path: Path
) -> None:
    run = finished("fedavg", SITE)
    done = export_model(run, "onnx", out=tmp_path / "out")
    assert "of all images that are segmented together" in (done.folder / "MODEL_CARD.md").read_text()
    model, alone = Model(done.folder), Model(done.folder)
    images = model.images(tiny_federation / "north")
    model.scale_by(images)
    shown = []
    for path, files in zip(predict(run, tiny_federation / "north", tmp_path / "own"), images, strict=True):
        np.testing.assert_array_equal(model.segment(files), Image.open(path))
        shown.append((model.probabilities(files), alone.probabilities(files)))
    assert any(not np.allclose(*pair, atol=1e-3) for pair in shown)  # an image by itself has numbers of its own
    (path,) = predict(run, images[0].paths[0], tmp_path / "one")
    np.testing.assert_array_equal(alone.segment(images[0]), Image.open(path))
    model.scale_by(images[0].paths[0])  # another call is for other images
    np.testing.assert_allclose(model.probabilities(images[0]), alone.probabilities(images[0]), atol=1e-6)
    with pytest.raises(PolyclinicError, match="a bundle sees one image at a time; give --site NAME"):
        export_model(run, "monai-bundle", out=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_model_that_is_not_the_runs_leaves_nothing(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    original = module.plain_network

    def spoilt(network: Any) -> Any:
        copied = original(network)
        with torch.no_grad():
            copied.classifier.bias += torch.tensor([5.0, -5.0])
        return copied

    monkeypatch.setattr(module, "plain_network", spoilt)
    with pytest.raises(PolyclinicError, match=r"The torchscript model is not the run's and was deleted \(checked on"):
        export_model(finished(), "torchscript", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten_and_wrong_words_get_a_sentence(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(PolyclinicError, match="is there already, and nothing is overwritten; choose another --out"):
        export_model(finished(), "torchscript", out=tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"
    with pytest.raises(PolyclinicError, match="--to torchscrip: no such format, did you mean 'torchscript'"):
        export_model(finished(), "torchscrip", out=tmp_path / "new")
    with pytest.raises(PolyclinicError, match="not a run folder"):
        export_model(tmp_path, "torchscript")


def test_copies_for_another_program_have_names_of_their_own(tmp_path: Path) -> None:
    import itk

    from polyclinic.data.federation import Item
    from polyclinic.export.check import Expected

    itk.imwrite(itk.image_from_array(np.arange(24, dtype=np.uint8).reshape(2, 3, 4)), str(tmp_path / "a.mhd"))
    for name in ("b.PNG", "c.nii.gz"):
        (tmp_path / name).write_bytes(b"voxels")
    files = [("a.mhd",), ("b.PNG",), ("c.nii.gz", "c.nii.gz")]
    items = [Item("s", "same", tuple(tmp_path / name for name in names), None, "same") for names in files]
    empty = np.zeros(0)
    module._copied([Expected(item, empty, empty) for item in items], tmp_path / "copies")
    names = sorted(path.name for path in (tmp_path / "copies").iterdir())
    assert names == ["image0.mha", "image1.png", "image2_0000.nii.gz", "image2_0001.nii.gz"]
    assert itk.array_from_image(itk.imread(str(tmp_path / "copies" / "image0.mha"))).ravel().tolist() == [*range(24)]


def test_without_out_the_model_lies_in_the_run(finished: Finished, tmp_path: Path) -> None:
    run = shutil.copytree(finished(), tmp_path / "run")
    done = export_model(run, "torchscript")
    assert done.folder == run / "exports" / "torchscript"
    assert sorted(path.name for path in done.folder.iterdir()) == sorted(done.files)
    assert json.loads((done.folder / "model.json").read_text())["classes"] == ["background", "disc"]
    assert (done.folder / "MODEL_CARD.md").read_text().startswith("# Model card: segmentation of disc")
