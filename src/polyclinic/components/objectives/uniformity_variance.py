"""FedUV's two regularisers, on sampled pixels.

Paper: Son et al., *FedUV: Uniformity and Variance for Heterogeneous Federated Learning*, CVPR 2024; the exact forms are
those of the released code:

- variance: ``mean_c relu(g - std_i(p_ic))`` over the softmax probabilities ``p`` of the instances, ``g`` the mean
  column deviation of the ``K x K`` identity, ``1 / sqrt(K)``; deviations are unbiased. ``target = "shares"`` is ours:
  ``g_c = sqrt(q_c (1 - q_c))``, what certain predictions of a class with the share ``q_c`` of the labelled pixels
  reach; no prediction of a rare class reaches ``1 / sqrt(K)``.
- uniformity: ``mean_(i<j) exp(-||z_i - z_j||^2 / s)`` over the representations ``z`` before the classifier, not
  normalised, ``s`` the median of the squared distances that are not zero.

``L = L_seg + 2.5 variance + 0.5 uniformity``.

Departures: An instance is a pixel, not an image: ``pixels`` of them, drawn from the whole batch as it is and not
balanced by class, since both terms speak about the natural batch. ``z`` is the last decoder map. Distances within
rounding of zero count as zero: flat background gives many such pairs, and a bandwidth of that size would give gradients
without bound. As in the released code, gradients go through the median: held constant, the term would mostly enlarge
the features.

Nothing leaves the site.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from polyclinic.components.base import Component, ComponentSettings
from polyclinic.components.registry import component
from polyclinic.components.step import Step
from polyclinic.components.toolbox.pixels import draw_pixels, rows_of_pixels

# Squared distances below this share of the vectors' mean squared length are rounding (a relative error of 1e-5).
_ROUNDING = 1e-10


def variance_term(logits: Tensor, shares: Tensor | None = None) -> Tensor:
    """``mean_c relu(g_c - std_i softmax_ic)`` of logits ``(instance, class)``; 0 for fewer than two rows.

    ``g_c`` is ``1 / sqrt(K)``, or ``sqrt(q_c (1 - q_c))`` for the ``shares`` ``q`` ``(class,)``.
    """
    if len(logits) < 2:
        return logits.new_zeros(())
    target = logits.shape[1] ** -0.5 if shares is None else (shares * (1 - shares)).sqrt()
    missing: Tensor = target - logits.softmax(1).std(0)
    return missing.relu().mean()


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """The share of each class in labels ``(batch, *spatial)``, ``(class,)``; zeros without any image."""
    counts = torch.bincount(labels.flatten().long(), minlength=classes).float()
    return counts / counts.sum().clamp_min(1)


def uniformity_term(vectors: Tensor) -> Tensor:
    """``mean_(i<j) exp(-||z_i - z_j||^2 / s)`` of vectors ``(instance, width)``; 0 if all are equal."""
    if len(vectors) < 2:
        return vectors.new_zeros(())
    # pdist takes differences, so that equal vectors are at exactly 0, with a gradient of 0.
    squared = torch.pdist(vectors).square()
    apart = squared > _ROUNDING * vectors.detach().square().sum(1).mean()
    # The lower median, without a shape that depends on values and would make a GPU wait.
    bandwidth = torch.where(apart, squared, torch.nan).nanmedian().nan_to_num(nan=1.0)
    return (-squared / bandwidth).exp().mean() * apart.any()


@component
class UniformityVariance(Component):
    """Spreads class probabilities and pixel features as those of a balanced batch are."""

    name = "uniformity_variance"
    level = "objective"
    paper = "Son et al., CVPR 2024"
    equations = (
        "FedUV variance: mean_c relu(1/sqrt(K) - std_i p_ic), or sqrt(q_c (1 - q_c)) in place of 1/sqrt(K)",
        "FedUV uniformity: mean_(i<j) exp(-||z_i - z_j||^2 / s), s the median squared distance",
    )

    class Settings(ComponentSettings):
        """``variance``, ``uniformity``: weights of the terms; ``pixels``: how many of a batch they look at."""

        variance: float = Field(2.5, ge=0)
        uniformity: float = Field(0.5, ge=0)
        pixels: int = Field(512, ge=2)
        target: Literal["balanced", "shares"] = Field(
            "balanced", description="of the variance: classes equally frequent, or as in the labels of the batch"
        )

    def loss(self, step: Step) -> dict[str, Tensor]:
        """The weighted terms; one of weight 0 is not computed, and without either nothing is drawn."""
        settings, terms = self.settings, dict[str, Tensor]()
        if not settings.variance and not settings.uniformity:
            return terms
        logits, features = step.output.logits, step.output.decoder[-1]
        pixels = step.once(f"{self.name}/pixels", lambda: draw_pixels(logits, settings.pixels, step.generator))
        with torch.autocast(logits.device.type, enabled=False):
            if settings.variance:
                balanced, labels = settings.target == "balanced", step.labels
                shares = None if balanced else class_shares(labels, logits.shape[1])
                terms["variance"] = settings.variance * variance_term(rows_of_pixels(logits, pixels), shares)
            if settings.uniformity:
                terms["uniformity"] = settings.uniformity * uniformity_term(rows_of_pixels(features, pixels))
        return terms
