"""Segment images with the model in this folder: ``python segment.py IMAGES --out MASKS``.

Needs numpy and what runs the network, onnxruntime for ``model.onnx`` or torch for ``model.ts``; Pillow reads pictures,
nibabel NIfTI, itk MHA and NRRD. In Python: ``Model(folder).segment("image.png")``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from polyclinic.export.standalone.image_files import Image, ImageFiles, list_images, read_image, write_mask
from polyclinic.export.standalone.preparation import Prepared, image_moments, prepare, to_file_grid
from polyclinic.export.standalone.site_intensity import intensity_of

Array = np.ndarray[Any, np.dtype[Any]]
Result = TypeVar("Result")
Network = Callable[[Array], Array]
"""Logits ``(batch, class, *spatial)`` of images ``(batch, channel, *spatial)`` in float32."""
_SIGMA = 0.125  # of a window's size: the width of the bell with which overlapping windows are weighted
_LEAST_WEIGHT = 1e-3


class Model:
    """A folder with ``model.json`` and ``model.onnx`` or ``model.ts``."""

    def __init__(self, folder: str | Path = ".", network: Network | None = None) -> None:
        """``network`` takes the place of the folder's own."""
        folder = Path(folder)
        settings = folder / "model.json" if (folder / "model.json").exists() else folder / "config.json"
        self.settings: dict[str, Any] = json.loads(settings.read_text(encoding="utf-8"))
        self.classes: list[str] = self.settings["classes"]
        self.network = network or load_network(folder)
        steps = self.settings.get("preprocessing", {})
        self._scales_by_images = steps.get("intensity") == "site" and steps["site_intensity"] is None

    def images(self, path: str | Path) -> list[ImageFiles]:
        """The images of a file or a folder."""
        return list_images(Path(path), self.settings["image_channels"], self.settings["zero_fill"])

    def scale_by(self, images: str | Path | Iterable[ImageFiles]) -> None:
        """Scale intensities by the mean and deviation of all these images, where the model is made for that.

        A model with the numbers of a site keeps them. Without this call every image has its own; another call is for
        other images.
        """
        if self._scales_by_images:
            steps = self.settings["preprocessing"]
            listed = self.images(images) if isinstance(images, str | Path) else images
            moments = [self._told(image_moments, files) for files in listed]
            steps["site_intensity"] = intensity_of(moments, steps["intensity_statistics"])

    def segment(self, image: str | Path | ImageFiles) -> Array:
        """The mask ``(*spatial)`` of an image on its own grid: the number of a class for every pixel."""
        return np.asarray(self.probabilities(image).argmax(0), dtype=np.uint8)

    def probabilities(self, image: str | Path | ImageFiles) -> Array:
        """Probabilities ``(class, *spatial)`` of an image on its own grid."""
        prepared = self.prepare(image)
        return to_file_grid(self.predict(prepared.samples), prepared)

    def prepare(self, image: str | Path | ImageFiles) -> Prepared:
        """What the network sees of an image."""
        files = image if isinstance(image, ImageFiles) else self.images(image)[0]
        return self._told(prepare, files)

    def _told(self, step: Callable[[Image, dict[str, Any]], Result], files: ImageFiles) -> Result:
        """What a step makes of an image; its errors name the file."""
        read = read_image(files, self.settings["image_channels"])
        try:
            return step(read, self.settings)
        except ValueError as error:
            raise ValueError(f"{files.paths[0]}: {error}") from error

    def predict(self, samples: Array) -> Array:
        """Probabilities ``(sample, class, *spatial)`` of prepared images ``(sample, channel, *spatial)``."""
        inference, spatial = self.settings["inference"], samples.shape[2:]
        window = tuple(min(pair) for pair in zip(inference["patch"] or spatial, spatial, strict=True))
        count = inference["batch_size"]
        batches = [samples[start : start + count] for start in range(0, len(samples), count)]
        if window == spatial:
            return np.concatenate([self.forward(batch) for batch in batches])
        return np.concatenate([self._slide(batch, window) for batch in batches])

    def forward(self, batch: Array) -> Array:
        """Probabilities of a batch: sizes that are no multiple are padded by repeating edges, and cut back."""
        inference, spatial = self.settings["inference"], batch.shape[2:]
        missing = [-size % step for size, step in zip(spatial, inference["multiples"], strict=True)]
        padded = np.pad(batch, [(0, 0), (0, 0), *((lack // 2, lack - lack // 2) for lack in missing)], mode="edge")
        fixed = inference["fixed_size"]
        if fixed is not None and list(padded.shape[2:]) != fixed:
            raise ValueError(f"an image of size {list(padded.shape[2:])} came to a network for {fixed} alone.")
        inside = tuple(slice(lack // 2, lack // 2 + size) for lack, size in zip(missing, spatial, strict=True))
        logits = self.network(padded.astype(np.float32))[(slice(None), slice(None), *inside)]
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True), dtype=np.float32)

    def _slide(self, batch: Array, window: tuple[int, ...]) -> Array:
        """Probabilities by overlapping windows, whose middles count more than their edges."""
        inference, spatial = self.settings["inference"], batch.shape[2:]
        windows = list(_windows(spatial, window, inference["overlap"]))
        places: list[Any] = [(image, slice(None), *place) for image in range(len(batch)) for place in windows]
        weights, count = _bell(window), inference["batch_size"]
        total = np.zeros((len(batch), len(self.classes), *spatial), dtype=np.float32)
        seen = np.zeros(spatial, dtype=np.float32)
        for place in windows:
            seen[place] += weights
        for start in range(0, len(places), count):
            chosen = places[start : start + count]
            for place, part in zip(chosen, self.forward(np.stack([batch[place] for place in chosen])), strict=True):
                total[place] += weights * part
        return np.asarray(total / seen)


def load_network(folder: Path) -> Network:
    """The network of a folder: ``model.onnx`` by onnxruntime, else ``model.ts`` by torch."""
    if (folder / "model.onnx").exists():
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=_providers(onnxruntime))
        name = session.get_inputs()[0].name
        return lambda batch: np.asarray(session.run(None, {name: batch})[0])
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    load: Any = torch.jit.load
    script = load(str(folder / "model.ts"), map_location=device).eval()

    def run(batch: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(script(torch.from_numpy(np.ascontiguousarray(batch)).to(device)).cpu().numpy())

    return run


def _providers(onnxruntime: Any) -> list[str]:
    wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
    return [provider for provider in wanted if provider in onnxruntime.get_available_providers()]


def _windows(spatial: tuple[int, ...], window: tuple[int, ...], overlap: float) -> Iterator[tuple[slice, ...]]:
    """Places of windows that cover an image; the last along an axis ends at its edge."""
    starts = []
    for size, length in zip(spatial, window, strict=True):
        step = length if length == size else max(1, int(length * (1 - overlap)))
        count = -(-(size - length) // step) + 1
        starts.append([min(number * step, size - length) for number in range(count)])
    for corner in product(*starts):
        yield tuple(slice(start, start + length) for start, length in zip(corner, window, strict=True))


def _bell(window: tuple[int, ...]) -> Array:
    """Gaussian weights ``(*window)``, nowhere 0."""
    weights = np.ones(window, dtype=np.float32)
    for axis, length in enumerate(window):
        places = np.arange(length, dtype=np.float32) - np.float32((length - 1) / 2)
        bell = np.exp(places**2 / np.float32(-2 * (_SIGMA * length) ** 2))
        weights *= bell.reshape([-1 if other == axis else 1 for other in range(len(window))])
    return np.maximum(weights, max(float(weights.min()), _LEAST_WEIGHT))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Segment images with the model in this folder.")
    parser.add_argument("images", help="an image, or a folder of images")
    parser.add_argument("--out", "-o", required=True, help="folder for the masks")
    chosen = parser.parse_args()
    try:
        model = Model(Path(__file__).resolve().parent)
        images = model.images(chosen.images)
        model.scale_by(images)
        for files in images:
            print(write_mask(Path(chosen.out), model.segment(files), files))
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
