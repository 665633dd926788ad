"""Encoders of timm with weights from the user's own safetensors file; nothing is downloaded, nothing unpickled."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.core.tensor_files import load_tensors
from polyclinic.networks.presets import PRESETS, Preset
from polyclinic.recipe import PretrainedSettings

_CONVERT = "convert it to safetensors (docs/explanation/networks.md has the command)"
_declared: list[torch.library.Library] = []


@dataclass(frozen=True)
class Encoder:
    """A timm model in which the weights are, and the colour statistics of its pretraining."""

    model: Any
    mean: tuple[float, ...]
    std: tuple[float, ...]


def load_encoder(settings: PretrainedSettings) -> Encoder:
    """Build ``settings.model`` and fill it; random weights come from torch's global generator."""
    timm = import_timm()
    name = settings.model
    if name is None:
        raise PolyclinicError(
            "network.name = 'pretrained' needs network.model: conch, chief, or a timm model such as resnet18."
        )
    preset = PRESETS.get(name) or _timm_preset(timm, name)
    tensors = None if settings.weights == "random" else _read(settings, preset)
    model = _create(timm, preset)
    if not hasattr(model, "forward_intermediates"):
        raise PolyclinicError(
            f"network.model = '{name}': timm gives no intermediate features of it; "
            "choose another model, such as resnet18 or vit_small_patch16_224."
        )
    if tensors is not None:
        _fill(model, tensors, settings)
    return Encoder(model, preset.mean, preset.std)


def import_timm() -> Any:
    """Give timm, an optional package."""
    try:
        try:
            import torchvision  # noqa: F401
        except RuntimeError:
            # PyPI's torchvision is built for CUDA. With a CPU build of torch its operators cannot be loaded, and then
            # it stops at the first two of them. timm uses none, so that declaring them is enough.
            library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            for operator in ("nms", "qnms"):
                schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                library.define(schema)  # type: ignore[no-untyped-call]
            _declared.append(library)
        import timm
    except (ImportError, RuntimeError) as error:
        raise PolyclinicError(
            f"network.name = 'pretrained' needs the package timm, which cannot be imported here ({error}); "
            "install it with: pip install 'polyclinic[timm]', with the torchvision that belongs to your torch."
        ) from error
    return timm


def _timm_preset(timm: Any, name: str) -> Preset:
    """A preset for any model of timm."""
    if not timm.is_model(name):
        hint = suggestion(name, [*PRESETS, *timm.list_models()]) or "; timm.list_models() lists them."
        raise PolyclinicError(f"network.model = '{name}' is neither {', '.join(PRESETS)} nor a model of timm{hint}")
    published = timm.get_pretrained_cfg(name)
    where = f"download model.safetensors of huggingface.co/{published.hf_hub_id}" if published.hf_hub_id else "find it"
    return Preset(name, tuple(published.mean), tuple(published.std), where)


def _create(timm: Any, preset: Preset) -> Any:
    """The model without a classifier, and able to see images of any size where its family needs to be told."""
    for sizes in ({"strict_img_size": False}, {"dynamic_img_size": True}):
        try:
            return timm.create_model(preset.architecture, pretrained=False, num_classes=0, **preset.options, **sizes)
        except TypeError:  # another family, which knows no such option
            continue
    return timm.create_model(preset.architecture, pretrained=False, num_classes=0, **preset.options)


def _read(settings: PretrainedSettings, preset: Preset) -> dict[str, Tensor]:
    """The tensors of the user's file, with the names of the model where a prefix stands before them."""
    key = f"network.weights = '{settings.weights}'"
    how = f"{preset.obtain}{'' if 'safetensors' in preset.obtain else f', {_CONVERT}'} and name the file there"
    if settings.weights is None:
        raise PolyclinicError(f"network.weights is not set: {settings.model} needs its safetensors file; {how}.")
    path = Path(settings.weights).expanduser()
    if not path.is_file():
        raise PolyclinicError(f"{key}: there is no such file at {path.absolute()}; {how}.")
    if path.suffix != ".safetensors":
        raise PolyclinicError(f"{key}: only safetensors files are read; {_CONVERT} and name the new file.")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if settings.sha256 is not None and digest != settings.sha256:
        raise PolyclinicError(
            f"{key}: its SHA-256 is {digest[:12]}..., network.sha256 asks for {settings.sha256[:12]}...; "
            "the model needs the very encoder that it was trained with, so restore that file."
        )
    tensors, _ = load_tensors(path)
    named = {n.removeprefix(preset.prefix): t for n, t in tensors.items() if n.startswith(preset.prefix)}
    return named or tensors


def _fill(model: Any, tensors: Mapping[str, Tensor], settings: PretrainedSettings) -> None:
    """Copy every weight from the file; what else the file holds, such as a classifier, is left alone."""
    weights: dict[str, Tensor] = model.state_dict()
    key = f"network.weights = '{settings.weights}'"
    if any(n not in tensors or tensors[n].shape != weights[n].shape for n in weights):
        # Files of older versions and other image sizes: timm knows how they differ.
        convert = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
        # A file of something else may break it; the names below then say what is wrong.
        with suppress(AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            tensors = tensors if convert is None else convert(dict(tensors), model)
    missing = [name for name in weights if name not in tensors]
    if missing:
        raise PolyclinicError(
            f"{key}: {len(missing)} of {len(weights)} weights of {settings.model} are missing, '{missing[0]}' first; "
            "the file belongs to another model."
        )
    wrong = next((name for name in weights if tensors[name].shape != weights[name].shape), None)
    if wrong is not None:
        raise PolyclinicError(
            f"{key}: '{wrong}' has shape {tuple(tensors[wrong].shape)}, {settings.model} needs "
            f"{tuple(weights[wrong].shape)}; the file belongs to another model."
        )
    model.load_state_dict({name: tensors[name] for name in weights})
