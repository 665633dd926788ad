"""The lines of a card that say how a model is run."""

from __future__ import annotations

import pytest

from polyclinic.export.usage import requirements, usage

PICTURES = {
    "spatial_dims": 2, "volumes_as_slices": False, "channels": 3, "classes": ["background", "a"],
    "preprocessing": {"intensity": "zero-one", "site_intensity": None},
}  # fmt: skip


def test_examples_fit_the_task() -> None:
    assert any("image.png" in line for line in usage("onnx", PICTURES))
    assert any("image.nii.gz" in line for line in usage("onnx", {**PICTURES, "volumes_as_slices": True}))
    assert any("(batch, 3, x, y, z)" in line for line in usage("torchscript", {**PICTURES, "spatial_dims": 3}))


@pytest.mark.parametrize(("to", "word"), [("torchscript", "trust"), ("monai-bundle", "trust")])
def test_files_that_are_programs_come_with_a_warning(to: str, word: str) -> None:
    assert word in " ".join(usage(to, PICTURES))


def test_images_that_are_scaled_together_are_named_before_the_first_mask() -> None:
    own = {"intensity": "site", "site_intensity": None}
    lines = usage("onnx", {**PICTURES, "preprocessing": own})
    place = next(number for number, line in enumerate(lines) if line.startswith('model.scale_by("/path/to/images")'))
    assert lines[place - 1] == 'model = Model(".")'
    fixed = {"intensity": "site", "site_intensity": {"mean": [0.0], "deviation": [1.0]}}
    for preprocessing in (PICTURES["preprocessing"], fixed):
        assert "scale_by" not in " ".join(usage("onnx", {**PICTURES, "preprocessing": preprocessing}))


def test_requirements_name_what_runs_the_network() -> None:
    assert "onnxruntime" in requirements("onnx")
    assert "torch" not in requirements("huggingface-folder")
    assert "onnxruntime" not in requirements("torchscript")
