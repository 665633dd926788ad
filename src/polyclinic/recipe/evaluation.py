"""The tables ``[evaluation]`` and ``[protocol]`` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from polyclinic.recipe.section import Section


class EvaluationSettings(Section):
    """What is measured."""

    metrics: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        ("dice", "iou", "precision", "sensitivity", "hd95", "asd", "assd"),
        description="the metrics of polyclinic, all by default, and those of plugins",
    )
    units: Literal["auto", "pixel", "mm"] = Field(
        "auto", description="of distances; auto: mm if the files of every site know their spacing"
    )
    per: Literal["auto", "image", "volume"] = Field(
        "auto", description="slices of a volume one by one, or stacked; auto: stacked for tasks on volumes"
    )
    regions: Literal["sum", "argmax"] = Field(
        "sum",
        description="where a task judges regions: a region is where its classes together are more probable than any "
        "other class, or where the most probable class is one of its own; masks of predict are maps of classes anyway",
    )
    batch_size: int = Field(16, ge=1)
    overlap: float = Field(0.5, ge=0, lt=1, description="of sliding windows")
    rounds: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (),
        description="the test images are scored after these rounds, too, counted from 1; that chooses no model",
    )

    training_images: bool = Field(
        False,
        description="also the tested model's mean Dice on the sites' own labelled training images: how far it is "
        "trained (one machine only)",
    )

    @field_validator("metrics")
    @classmethod
    def _once(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        doubled = [metric for metric in metrics if metrics.count(metric) > 1]
        if doubled:
            raise ValueError(f"'{doubled[0]}' is there twice; name each metric once")
        return metrics

    @field_validator("rounds")
    @classmethod
    def _rising(cls, rounds: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(rounds)))


class ProtocolSettings(Section):
    """How a method is judged."""

    kind: Literal["own-test", "leave-one-site-out", "k-fold", "repeated-splits"] = "own-test"
    folds: int = Field(5, ge=2, description="of k-fold")
    repeats: int = Field(
        3, ge=2, description="of repeated-splits: trainings, each on a split of its own, drawn with seed, seed + 1, ..."
    )
    transfer: bool = Field(False, description="also test every site's own model at every other site (one machine only)")

    @property
    def trainings(self) -> int:
        """How often a site trains at most: once for each part of the protocol that draws splits."""
        return {"k-fold": self.folds, "repeated-splits": self.repeats}.get(self.kind, 1)
