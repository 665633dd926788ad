"""The bundle's own steps, with MONAI's between them, prepare and predict as polyclinic does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from PIL import Image

from polyclinic.data.federation import Federation, Item, Task
from polyclinic.data.preprocessing import prepare, to_file_grid
from polyclinic.data.site_intensity import SiteIntensity
from polyclinic.evaluation.inference import predict_probabilities
from polyclinic.export.monai_bundle import inference_config
from polyclinic.export.settings import model_settings
from polyclinic.export.standalone import bundle_steps
from polyclinic.export.standalone.image_files import read_file
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe

TURNED = np.array([[0, -1.5, 0, 4], [1, 0, 0, -2], [0, 0, 2, 7], [0, 0, 0, 1.0]])
CASES: dict[str, tuple[Task, dict[str, Any], bool]] = {
    "pictures": (Task(("b", "a"), 3, 2), {"size": (12, 20), "intensity": "full-range"}, False),
    "volumes": (
        Task(("b", "a"), 2, 3),
        {"patch": (8, 4, 4), "spacing": (1.2, 1.2, 1.2), "intensity": "z-score", "nonzero": True},
        False,
    ),
    "pictures by a site's numbers": (Task(("b", "a"), 3, 2), {"size": (12, 20), "intensity": "site"}, False),
    "volumes by a site's numbers": (
        Task(("b", "a"), 4, 3, zero_fill=True),
        {"size": (8, 4, 9), "fit": "pad-crop", "intensity": "site", "intensity_statistics": "channel", "nonzero": True},
        False,
    ),
    "slices": (
        Task(("b", "a"), 6, 2, "", 1),
        {"size": (8, 14), "crop": (9, 9), "intensity": "percentile", "slice_axis": 0},
        True,
    ),
    "padded": (Task(("b", "a"), 2, 3), {"size": (12, 4, 9), "fit": "pad-crop", "orientation": "LPS"}, False),
}


def network(images: torch.Tensor) -> torch.Tensor:
    """Logits that see neighbours and places; not a linear map, so that its order with softmax matters."""
    mixed = images.mean(1, keepdim=True).cumsum(-1).sin() * 3
    return torch.cat([mixed, images[:, :1] - mixed], 1)


@pytest.mark.parametrize("name", CASES)
def test_the_configuration_gives_the_masks_of_the_run(name: str, tmp_path: Path) -> None:
    task, data, sliced = CASES[name]
    workspace = build_workspace(tiny_recipe(data=data), task)
    many = 1 if data.get("intensity_statistics") != "channel" else task.image_channels
    numbers = {"": SiteIntensity(tuple(0.3 + n for n in range(many)), tuple(0.2 + n for n in range(many)), False, 1)}
    federation = Federation("f", task, {}, Path(), sliced, numbers if data.get("intensity") == "site" else {})
    images = tmp_path / "images"
    images.mkdir()
    rng, places = np.random.default_rng(0), (1, 3) if task.zero_fill else (0, 1)
    if task.spatial_dims == 2 and not sliced:
        paths = [images / "a.png"]
        Image.fromarray(rng.integers(0, 256, (18, 15, 3), np.uint8)).save(paths[0])
    else:
        paths = [images / f"a_{place:04d}.nii.gz" for place in places]
        for path in paths:
            nibabel.save(nibabel.Nifti1Image(rng.normal(9, 5, (7, 9, 11)).astype(np.float32), TURNED), path)
    item = Item("", "a", tuple(paths), None, "a", places=places if task.zero_fill else ())
    wanted = prepare(item, federation, workspace.recipe.data)
    stacked = torch.stack([one.image for one in wanted])
    evaluation = workspace.recipe.evaluation
    chances = predict_probabilities(
        network, stacked, data.get("patch"), evaluation.overlap, evaluation.batch_size, workspace.network.multiples
    )
    mask = to_file_grid(chances if sliced else chances[0], wanted[0].geometry)

    config = inference_config(model_settings(workspace, federation))
    text = json.dumps(config).replace("scripts.bundle_steps", bundle_steps.__name__)
    parser = ConfigParser({**json.loads(text), "dataset_dir": str(images), "output_dir": str(tmp_path / "masks")})
    entry = parser.get_parsed_content("dataset")[0]
    entry["pred"] = parser.get_parsed_content("inferer")(entry["image"][None], network)[0]
    parser.get_parsed_content("postprocessing")(entry)
    (path,) = (tmp_path / "masks").iterdir()
    np.testing.assert_array_equal(read_file(path)[0][0], mask)
    assert set(np.unique(mask)) == {0, 1}


def test_images_that_do_not_fit_get_a_sentence(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "a.png")
    (entry,) = bundle_steps.list_data(str(tmp_path), 1, False)
    with pytest.raises(ValueError, match="expected an image with 3 axes"):
        bundle_steps.ReadImaged("image", 1, 3, None, False)(entry)
    with pytest.raises(ValueError, match="know their place in space"):
        bundle_steps.ReadImaged("image", 1, 2, None, True)(entry)
    with pytest.raises(ValueError, match="unsigned integers"):
        bundle_steps.FullRanged("image")({"image": torch.zeros(1), "highest": torch.tensor(0.0), "name": "a"})
