"""The bundle's configurations, and MONAI's own command on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from monai.bundle import ConfigParser
from monai.bundle.properties import InferProperties, MetaProperties

from polyclinic.core.errors import PolyclinicError
from polyclinic.data.federation import Federation, Task
from polyclinic.export import export_model
from polyclinic.export.monai_bundle import bundle_metadata, inert, inference_config, preprocessing, run_bundle
from polyclinic.export.settings import model_settings
from polyclinic.federation.workspace import build_workspace
from support import tiny_recipe

PIXELS = Task(("background", "a"), 1, 2)


def settings(task: Task = PIXELS, sliced: bool = False, **data: Any) -> dict[str, Any]:
    return model_settings(build_workspace(tiny_recipe(data=data), task), Federation("f", task, {}, Path(), sliced))


def test_every_property_that_monai_asks_for_is_there() -> None:
    config = ConfigParser(inference_config(settings()))
    config["_meta_"] = bundle_metadata(settings(), "what it is")
    for properties in (InferProperties, MetaProperties):
        for name, wanted in properties.items():
            if wanted["required"]:
                assert wanted["id"] in config, name


def test_metadata_has_what_the_schema_requires() -> None:
    """The required keys of MONAI's meta_schema_20240725.json, which cannot be downloaded here."""
    metadata = bundle_metadata(settings(), "what it is")
    required = ("version", "monai_version", "pytorch_version", "numpy_version", "required_packages_version", "task",
                "description", "authors", "copyright", "network_data_format")  # fmt: skip
    assert all(metadata[name] for name in required)
    image, result = (
        metadata["network_data_format"]["inputs"]["image"],
        metadata["network_data_format"]["outputs"]["pred"],
    )
    for entry in (image, result):
        assert entry.keys() >= {
            "type",
            "format",
            "num_channels",
            "spatial_shape",
            "dtype",
            "value_range",
            "channel_def",
        }
    assert result["channel_def"] == {"0": "background", "1": "a"}
    assert image["spatial_shape"] == ["4*n", "4*n"]


def test_steps_are_monais_where_it_has_them() -> None:
    def names(**options: Any) -> list[str]:
        return [step["_target_"].rpartition(".")[2] for step in preprocessing(settings(**options))]

    assert names(intensity="zero-one", size=(8, 8)) == ["ReadImaged", "ScaleIntensityd", "FitToSized", "NoteAffined"]
    volume = Task(("background", "a"), 1, 3)
    assert names(task=volume, spacing=(1.0, 1.0, 2.0), size=(8, 8, 8), fit="pad-crop", intensity="percentile") == [
        "ReadImaged", "Orientationd", "Spacingd", "ScaleIntensityRangePercentilesd", "ResizeWithPadOrCropd",
        "NoteAffined",
    ]  # fmt: skip
    assert names(intensity="none", crop=(4, 4)) == ["ReadImaged", "CenterSpatialCropd", "NoteAffined"]
    (crop,) = (
        step for step in preprocessing(settings(sliced=True, crop=(4, 5), slice_axis=1)) if "Crop" in step["_target_"]
    )
    assert crop["roi_size"] == [4, -1, 5]


@pytest.mark.parametrize("text", ["$__import__('os').system('id')", "@bundle_root", "%/etc/passwd", " $1 + 1", "$$x"])
def test_names_from_sites_are_never_evaluated(text: str) -> None:
    """MONAI's parser runs every value that begins with a dollar sign."""
    task = Task(("background", text), 1, 2, text)
    metadata = bundle_metadata(settings(task), text)
    parser = ConfigParser(metadata)
    parser.parse()
    assert parser.get_parsed_content("network_data_format#outputs#pred#channel_def#1") == inert(text)
    assert parser.get_parsed_content("description") == inert(text)


def test_a_bundle_that_does_not_run_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(PolyclinicError, match=r"MONAI's command could not run the bundle \(no message\)"):
        run_bundle(tmp_path, tmp_path, tmp_path)


def test_the_bundle_runs_by_monais_command_where_there_is_no_polyclinic(
    everything: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check inside of the export runs `python -m monai.bundle run` and compares masks."""

    def run_without_polyclinic(bundle: Path, *folders: Path) -> None:
        hook = bundle / "sitecustomize.py"
        hook.write_text("import sys\nsys.modules['polyclinic'] = None\n")
        run_bundle(bundle, *folders)
        hook.unlink()

    monkeypatch.setattr(export_model, "run_bundle", run_without_polyclinic)
    done = export_model.export_model(everything, "monai-bundle", out=tmp_path / "bundle")
    assert done.check.differing == 0
    assert done.check.passed
    assert set(done.files) == {
        "LICENSE", "configs/inference.json", "configs/metadata.json", "docs/README.md", "models/model.ts",
        "scripts/__init__.py", "scripts/bundle_steps.py", "scripts/image_files.py", "scripts/preparation.py",
        "scripts/resampling.py", "scripts/site_intensity.py",
    }  # fmt: skip
