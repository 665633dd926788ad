"""The recipes of PathFL's five settings, on a federation whose images have the sizes of Table 1, divided by seven."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import polyclinic
from polyclinic.data.open_federation import open_federation
from polyclinic.data.phantoms import DEMOS, pathology
from polyclinic.recipe.files import load_recipe, shipped_recipes
from polyclinic.runs.plan import prepare_items

SETTINGS = ("source", "modality", "organ", "scanner", "unified")
SITES = list(DEMOS["pathology"].cases)
SIZES = {
    "source-1": [(143, 143)], "source-2": [(71, 71), (86, 86)], "source-3": [(216, 217)], "source-5": [(75, 111)],
    "source-6": [(143, 143)], "modality-cytology": [(32, 32)],
}  # fmt: skip


@pytest.fixture(scope="module")
def sixteen_sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pathfl")
    (folder / "federation.toml").write_text('classes = ["background", "structure"]\nchannels = 3\n')
    for site in SITES:
        for kind in ("images", "labels"):
            (folder / site / kind).mkdir(parents=True)
        for number in range(3):
            sizes = SIZES.get(site, [(72, 72)])
            drawing = pathology.draw(np.random.default_rng(number), site, (32, 32))
            for kind, array in (("images", drawing.image), ("labels", drawing.mask * np.uint8(255))):
                picture = Image.fromarray(array).resize(sizes[number % len(sizes)][::-1], Image.Resampling.NEAREST)
                picture.save(folder / site / kind / f"{number}.png")
    return folder


@pytest.mark.parametrize("setting", SETTINGS)
def test_images_of_table_1_train_and_keep_their_size(setting: str, sixteen_sites: Path, tmp_path: Path) -> None:
    full = load_recipe(f"pathfl-{setting}")
    assert full.data.patch is not None
    patch = [length // 7 for length in full.data.patch]
    rounds = 2 if setting == "modality" else 1  # once is enough for what needs the statistics of a round before
    overrides = [
        f"federation={sixteen_sites}", f"data.patch={patch}", "network.width=4", f"training.rounds={rounds}",
        "training.local_epochs=1",
    ]  # fmt: skip
    result = polyclinic.run(f"pathfl-{setting}", out=tmp_path / "run", overrides=overrides)
    wanted = [site for site in SITES if setting in ("unified", site.split("-")[0])]
    assert sorted(result.summary["sites"]) == sorted(wanted)
    resolved = load_recipe(tmp_path / "run/recipe.toml")
    federation = open_federation(resolved.federation, resolved.data)
    for site in wanted:
        images = prepare_items(federation, resolved, federation.sites[site])
        assert images.moments is not None
        images = images.by_site(images.moments.of(images.moments.by_image))
        shapes = {tuple(images[number][1].shape) for number in range(len(images))}
        assert shapes == set(SIZES.get(site, [(72, 72)]))


@pytest.mark.parametrize("setting", SETTINGS)
def test_small_and_full_have_the_same_sites(setting: str) -> None:
    full, small = load_recipe(f"pathfl-{setting}"), load_recipe(f"pathfl-{setting}-small")
    assert small.federation == "demo:pathology"
    assert full.data.sites == small.data.sites
    wanted = tuple(site for site in SITES if site.split("-")[0] == setting)
    assert full.data.sites == (wanted or None)
    assert (small.method, small.training.loss) == (full.method, full.training.loss)


def test_settings_of_the_paper() -> None:
    for setting in SETTINGS:
        recipe = load_recipe(f"pathfl-{setting}")
        training, network = recipe.training, recipe.network
        assert (training.rounds, training.local_epochs) == (100 if setting == "modality" else 60, 5)
        assert (training.lr, training.betas, training.batch_size, training.loss) == (1e-4, (0.9, 0.95), 4, "ce")
        assert (network.width, network.depth, network.norm, network.upsample) == (32, 3, "group", "linear")
        assert recipe.evaluation.metrics == ("dice", "assd")
        assert (training.optimizer, recipe.policies.optimizer_state) == ("adam", "reset")
        # Cytology is 224 wide; crops of 512 would be black margin for the most part, also in CSE's styles.
        assert recipe.data.patch == ((224, 224) if setting in ("modality", "unified") else (512, 512))
        assert recipe.data.split[2] == 0.2
        for name in (f"pathfl-{setting}", f"pathfl-{setting}-small"):
            data = load_recipe(name).data
            assert (data.intensity, data.intensity_statistics) == ("site", "scalar")


def test_there_are_ten_of_them() -> None:
    assert sorted(name for name in shipped_recipes() if name.startswith("pathfl-")) == sorted(
        f"pathfl-{setting}{size}" for setting in SETTINGS for size in ("", "-small")
    )
