"""A folder in the layout of the Hugging Face hub: README with front matter, ``config.json``, ``model.safetensors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from polyclinic.core.files import atomic_write, write_json
from polyclinic.core.wording import printable_line
from polyclinic.evaluation.metric_registry import known_metrics
from polyclinic.federation.workspace import Workspace, independent


def write_huggingface_files(folder: Path, workspace: Workspace, settings: dict[str, Any]) -> None:
    """The weights by name, and what is needed to build the network again."""
    from safetensors.torch import save_file

    weights = {name: independent(tensor) for name, tensor in workspace.network.state_dict().items()}
    with atomic_write(folder / "model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})
    network = workspace.recipe.network.model_dump(mode="json")
    network.pop("weights", None)  # a path on the machine of the run
    write_json(folder / "config.json", {**settings, "method": workspace.recipe.method, "network": network})


def front_matter(workspace: Workspace, summary: dict[str, Any]) -> str:
    """The YAML block at the head of the README. Text is written as JSON, which YAML reads as text and nothing else."""
    task = workspace.task
    tags = ["medical", "image-segmentation", "federated-learning", "polyclinic", "onnx"]
    tags += [printable_line(task.modality)] if task.modality else []
    lines = [
        "---",
        "license: unknown  # to be filled in by those who own the data and the model",
        "library_name: onnx",
        "pipeline_tag: image-segmentation",
        "tags:",
        *(f"- {_text(tag)}" for tag in tags),
        *_results(summary, ", ".join(task.classes[1:])),
        "---",
        "",
    ]
    return "\n".join(lines) + "\n"


def _results(summary: dict[str, Any], classes: str) -> list[str]:
    """``model-index``, one result a site."""
    sites = summary.get("sites") or {}
    shown = {site: {m: v for m, v in values.items() if _is_number(v)} for site, values in sites.items()}
    shown = {site: values for site, values in shown.items() if values}
    if not shown:
        return []
    lines = ["model-index:", f"- name: {_text('segmentation of ' + classes)}", "  results:"]
    for site, values in shown.items():
        name = f"{summary.get('federation', 'federation')}, test images of {site}"
        lines += ["  - task:", "      type: image-segmentation", "    dataset:", f"      name: {_text(name)}"]
        lines += ["      type: federation", "    metrics:"]
        for metric, value in values.items():
            unit = known_metrics()[metric].unit if metric in known_metrics() else "none"
            shown_unit = {"percent": "share from 0 to 1", "distance": summary.get("distances", "pixels")}.get(unit, "")
            label = f"{metric} ({shown_unit})" if shown_unit else metric
            lines += [f"    - type: {_text(metric)}", f"      name: {_text(label)}", f"      value: {float(value):.6f}"]
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value and abs(value) != float("inf")


def _text(text: str) -> str:
    return json.dumps(printable_line(text))
