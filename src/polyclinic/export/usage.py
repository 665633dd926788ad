"""How an exported model is run, as lines of its card, and what has to be installed for it."""

from __future__ import annotations

from typing import Any


def usage(to: str, settings: dict[str, Any]) -> list[str]:
    """The lines of "How to run it"."""
    if to == "monai-bundle":
        return [
            "With MONAI's own command, in this bundle's folder; masks have the images' names, format and geometry:",
            "",
            "```bash",
            "pip install monai pytorch-ignite fire nibabel pillow",
            "python -m monai.bundle run --config_file configs/inference.json --meta_file configs/metadata.json \\",
            "  --dataset_dir /path/to/images --output_dir /path/to/masks",
            "```",
            "",
            "`configs/inference.json` and `models/model.ts` are programs: run those of people you trust.",
            "",
        ]
    example = "image.nii.gz" if settings["spatial_dims"] == 3 or settings["volumes_as_slices"] else "image.png"
    return [
        "Without polyclinic, in this folder; masks have the images' names, format and geometry:",
        "",
        "```bash",
        "pip install -r requirements.txt",
        "python segment.py /path/to/images --out /path/to/masks",
        "```",
        "",
        "In Python:",
        "",
        "```python",
        "from segment import Model",
        "",
        'model = Model(".")',
        *_scaling(settings),
        f'mask = model.segment("{example}")  # the number of a class for every pixel',
        f'probabilities = model.probabilities("{example}")  # (class, *spatial)',
        "print(mask.shape, model.classes)",
        "```",
        "",
        *_graph(to, settings),
    ]


def _scaling(settings: dict[str, Any]) -> list[str]:
    steps = settings["preprocessing"]
    if steps["intensity"] != "site" or steps["site_intensity"] is not None:
        return []
    return ['model.scale_by("/path/to/images")  # by the mean and deviation of all of these, else of each alone']


def _graph(to: str, settings: dict[str, Any]) -> list[str]:
    axes = ", ".join("xyz"[: settings["spatial_dims"]])
    name = "`model.ts` (TorchScript)" if to == "torchscript" else "`model.onnx`"
    lines = [
        f"{name} takes prepared images `(batch, {settings['channels']}, {axes})` in float32 and gives logits "
        f"`(batch, {len(settings['classes'])}, {axes})`; `segment.py` does what comes before and "
        f"after, as the plain numbers in `{'config' if to == 'huggingface-folder' else 'model'}.json` say.",
        "",
    ]
    if to == "torchscript":
        lines += ["A TorchScript file is a program: load those of people you trust.", ""]
    return lines


def requirements(to: str) -> str:
    """``requirements.txt``: what runs the network, and what reads images."""
    runner = "torch" if to == "torchscript" else "onnxruntime"
    return f"numpy\n{runner}\npillow\nnibabel\n# itk-io, for MHA, MHD and NRRD\n"
