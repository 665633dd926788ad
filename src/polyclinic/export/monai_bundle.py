"""A MONAI bundle: MONAI's own transforms and engine in a configuration, the network as TorchScript."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import make_folder, write_json
from polyclinic.core.version import VERSION, installed_versions
from polyclinic.core.wording import printable_line
from polyclinic.export.programs import BUNDLE_SCRIPTS, copy_programs

_SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
_STEPS = "scripts.bundle_steps"
_AXES = (("L", "R"), ("P", "A"), ("I", "S"))


def write_bundle_files(folder: Path, settings: dict[str, Any], description: str) -> None:
    """Configurations and scripts; the model and the card are written by others."""
    write_json(folder / "configs" / "metadata.json", bundle_metadata(settings, description))
    write_json(folder / "configs" / "inference.json", inference_config(settings))
    make_folder(folder / "scripts")
    (folder / "scripts" / "__init__.py").write_text("", encoding="utf-8")
    copy_programs(BUNDLE_SCRIPTS, folder / "scripts", "scripts")


def inference_config(settings: dict[str, Any]) -> dict[str, Any]:
    """``configs/inference.json``: every step from the files of ``dataset_dir`` to masks in ``output_dir``."""
    inference, sliced = settings["inference"], settings["volumes_as_slices"]
    return {
        "imports": ["$import torch"],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/masks'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "network_def": "$torch.jit.load(@bundle_root + '/models/model.ts', map_location=@device).eval()",
        "data": {
            "_target_": f"{_STEPS}.list_data",
            "folder": "@dataset_dir",
            "channels": settings["image_channels"],
            "zero_fill": settings["zero_fill"],
        },
        "preprocessing": {"_target_": "Compose", "transforms": preprocessing(settings)},
        "dataset": {"_target_": "Dataset", "data": "@data", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
        "inferer": {
            "_target_": f"{_STEPS}.SegmentationInferer",
            "roi_size": inference["patch"],
            "overlap": inference["overlap"],
            "batch_size": inference["batch_size"],
            "multiples": inference["multiples"],
            "slice_axis": settings["slice_axis"] if sliced else None,
            "neighbours": settings["neighbours"],
        },
        "postprocessing": {
            "_target_": "Compose",
            "transforms": [
                {"_target_": f"{_STEPS}.SaveMaskd", "keys": "pred", "files": "@data", "output_dir": "@output_dir"}
            ],
        },
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network_def",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "val_handlers": [],
        },
        "run": ["$@evaluator.run()"],
    }


def preprocessing(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The transforms of an image, MONAI's where it has one."""
    steps, sliced = settings["preprocessing"], settings["volumes_as_slices"]
    axes = 3 if sliced else settings["spatial_dims"]
    known = steps["spacing"] is not None or (axes == 3 and steps["orientation"] != "RAS")
    found = [
        {
            "_target_": f"{_STEPS}.ReadImaged",
            "keys": "image",
            "channels": settings["image_channels"],
            "axes": axes,
            "file_spacing": settings["file_spacing"],
            "known_place": known,
        }
    ]
    if axes == 3:
        found.append(_step("Orientationd", axcodes=steps["orientation"], labels=_AXES))
    if steps["spacing"] is not None:
        found.append(_step("Spacingd", pixdim=steps["spacing"], mode="bilinear", padding_mode="border"))
    found += _intensity(steps)
    for key, name, argument in (
        ("crop", "CenterSpatialCropd", "roi_size"),
        ("size", "ResizeWithPadOrCropd" if steps["fit"] == "pad-crop" else f"{_STEPS}.FitToSized", "spatial_size"),
    ):
        if steps[key] is not None:
            size = list(steps[key])
            if sliced:
                size.insert(settings["slice_axis"], -1)
            found.append(_step(name, **{argument: size}))
    if steps["site_intensity"] is not None:
        found.append(_step(f"{_STEPS}.SiteIntensityd", nonzero=steps["nonzero"], **steps["site_intensity"]))
    if not sliced and settings["neighbours"]:
        found.append(_step("RepeatChanneld", repeats=2 * settings["neighbours"] + 1))
    return [*found, _step(f"{_STEPS}.NoteAffined")]


def _intensity(steps: dict[str, Any]) -> list[dict[str, Any]]:
    lower, upper = steps["percentiles"]
    ways = {
        "zero-one": _step("ScaleIntensityd", minv=0.0, maxv=1.0, channel_wise=True),
        "z-score": _step("NormalizeIntensityd", nonzero=steps["nonzero"], channel_wise=True),
        "percentile": _step(
            "ScaleIntensityRangePercentilesd",
            lower=lower, upper=upper, b_min=0.0, b_max=1.0, clip=True, channel_wise=True,
        ),
        "full-range": _step(f"{_STEPS}.FullRanged"),
        "site": _step(f"{_STEPS}.FullRanged", pictures=True),
    }  # fmt: skip
    return [ways[steps["intensity"]]] if steps["intensity"] in ways else []


def _step(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": name, "keys": "image", **arguments}


def bundle_metadata(settings: dict[str, Any], description: str) -> dict[str, Any]:
    """``configs/metadata.json`` in MONAI's schema."""
    versions, inference = installed_versions(), settings["inference"]
    seen = inference["fixed_size"] or inference["patch"] or settings["preprocessing"]["size"]
    shape = [f"{step}*n" for step in inference["multiples"]] if inference["fixed_size"] is None else seen
    image = {
        "type": "image",
        "format": "magnitude",
        "modality": inert(settings["modality"]) or "unknown",
        "num_channels": settings["channels"],
        "spatial_shape": shape,
        "dtype": "float32",
        "value_range": [0, 1] if settings["preprocessing"]["intensity"] not in ("z-score", "site", "none") else [],
        "is_patch_data": inference["patch"] is not None,
        "channel_def": {str(number): f"channel {number}" for number in range(settings["channels"])},
    }
    classes = {str(number): inert(name) for number, name in enumerate(settings["classes"])}
    result = {
        "type": "image",
        "format": "segmentation",
        "num_channels": len(classes),
        "spatial_shape": shape,
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": inference["patch"] is not None,
        "channel_def": classes,
    }
    return {
        "schema": _SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported by polyclinic {VERSION}"},
        "monai_version": versions["monai"],
        "pytorch_version": versions["torch"],
        "numpy_version": versions["numpy"],
        "required_packages_version": {name: _version(name) for name in ("nibabel", "pillow", "pytorch-ignite", "fire")},
        "name": "Federated segmentation",
        "task": f"segmentation of {', '.join(settings['classes'][1:])}",
        "description": inert(description),
        "authors": "fill in",
        "copyright": "fill in",
        "intended_use": "research; not a medical device",
        "network_data_format": {"inputs": {"image": image}, "outputs": {"pred": result}},
    }


def inert(text: str) -> str:
    """Text that MONAI's parser does not run: it evaluates what begins with a dollar sign, and names come from sites."""
    return printable_line(text).lstrip("$@% ")


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "any"


def run_bundle(bundle: Path, images: Path, masks: Path) -> None:
    """Segment a folder with MONAI's own command, in a process of its own that knows nothing of polyclinic."""
    command = [
        sys.executable, "-m", "monai.bundle", "run", "--config_file", "configs/inference.json",
        "--meta_file", "configs/metadata.json", "--bundle_root", str(bundle.resolve()),
        "--dataset_dir", str(images.resolve()), "--output_dir", str(masks.resolve()),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(bundle.resolve())}
    done = subprocess.run(command, cwd=bundle, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PolyclinicError(
            f"MONAI's command could not run the bundle ({printable_line(last)}); it was deleted. Try --to torchscript."
        )
