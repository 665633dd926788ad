"""From images to class probabilities: in one go where they fit, else by a sliding window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def predict_probabilities(
    network: Callable[[Tensor], Tensor],
    images: Tensor,
    patch: Sequence[int] | None = None,
    overlap: float = 0.5,
    batch_size: int = 16,
    multiple: int | Sequence[int] = 1,
) -> Tensor:
    """Class probabilities ``(batch, class, *spatial)``, float32, of images ``(batch, channel, *spatial)``.

    ``network`` gives logits ``(batch, class, *spatial)``; a module runs in eval mode and gets its modes back. Images
    larger than ``patch`` are covered by windows of that size, whose probabilities are averaged with Gaussian weights.
    ``batch_size`` bounds the images or windows of one forward pass. Inputs whose size is no ``multiple`` (one number,
    or one for each axis) are padded by repeating their edges, and the result is cropped back.
    """
    images, spatial = images.float(), tuple(images.shape[2:])
    multiples = (multiple,) * len(spatial) if isinstance(multiple, int) else tuple(multiple)
    window = spatial if patch is None else tuple(min(pair) for pair in zip(patch, spatial, strict=True))

    def forward(part: Tensor) -> Tensor:
        padded, inside = _pad(part, multiples)
        return network(padded)[inside].float().softmax(dim=1)

    with torch.inference_mode(), evaluating(network):
        if window == spatial:
            parts = [forward(part) for part in torch.split(images, batch_size)]
        else:
            from monai.inferers import SlidingWindowInferer

            inferer = SlidingWindowInferer(window, batch_size, overlap, mode="gaussian")
            parts = [inferer(images, forward)]
    # Joined outside of inference mode, because a tensor made inside can never enter a loss.
    return torch.cat(parts)


@contextmanager
def evaluating(network: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Put a module into eval mode for a while, then give each of its parts the mode that it had."""
    modes = {module: module.training for module in network.modules()} if isinstance(network, nn.Module) else {}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _pad(images: Tensor, multiples: tuple[int, ...]) -> tuple[Tensor, tuple[slice, ...]]:
    """Repeat the edges until every spatial axis is a multiple; also where the image lies in the result."""
    missing = [-size % step for size, step in zip(images.shape[2:], multiples, strict=True)]
    inside = [slice(lack // 2, lack // 2 + size) for lack, size in zip(missing, images.shape[2:], strict=True)]
    widths = [width for lack in reversed(missing) for width in (lack // 2, lack - lack // 2)]
    padded = F.pad(images, widths, mode="replicate") if any(missing) else images
    return padded, (slice(None), slice(None), *inside)
