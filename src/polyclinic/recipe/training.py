"""The tables ``[training]`` and ``[policies]`` of a recipe."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from polyclinic.recipe.section import Positive, Section


def _share_or_count(value: float) -> float:
    if value > 1 and value != int(value):
        raise ValueError("it must be a share up to 1, or a whole number of sites")
    return value


ShareOrCount = Annotated[float, Field(gt=0), AfterValidator(_share_or_count)]
"""Of sites: 0.5 is half of them, 1 is all, 2 is two."""


class TrainingSettings(Section):
    """Local training and rounds."""

    rounds: int = Field(20, ge=1)
    local_epochs: int = Field(1, ge=1)
    steps_per_epoch: int | None = Field(
        None,
        ge=1,
        description="optimiser steps of a local epoch, the same at every site and for every method; by default a walk "
        "over the labelled images, or (labelled + unlabelled) / (2 batch_size) steps where a method learns from both; "
        "central takes those of all sites together",
    )
    batch_size: int = Field(6, ge=1)
    loss: Literal["dice-ce", "dice-ce-mean", "ce", "dice"] = Field(
        "dice-ce", description="dice-ce adds both, -mean halves the sum"
    )
    dice_classes: Literal["all", "foreground"] = Field(
        "all", description="the classes whose Dice is in that loss: the background's too, or not (nnU-Net)"
    )
    dice_over: Literal["image", "batch"] = Field(
        "image", description="a Dice of each image, or one over all pixels of the batch (nnU-Net)"
    )
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: Positive = 1e-3
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "cosine", "poly"] = Field(
        "constant", description="of the learning rate over all rounds"
    )
    poly_power: Positive = 0.9
    warmup: int = Field(
        0, ge=0, description="rounds in which the learning rate rises from lr / (warmup + 1) to that of the schedule"
    )
    clip_gradients: Positive | None = Field(None, description="largest norm of the gradient")
    amp: Literal["auto", "bfloat16", "off"] = Field(
        "auto",
        description="mixed precision of training: on GPUs; on every device, for processors with bfloat16; never",
    )
    participation: ShareOrCount = Field(
        1.0, description="share of the sites in a round (1: all of them), or their number (a whole one above 1)"
    )
    quorum: ShareOrCount = Field(
        0.5,
        description="share of the chosen sites that must return a good update (1: all of them), or their number "
        "(a whole one above 1); more than a round has sites is refused",
    )
    max_update_ratio: Annotated[float, Field(ge=1)] | Literal["off"] = Field(
        1000.0,
        description="an update is refused that changes the weights by more than this many times what is usual at the "
        "other sites, and by more than the size of the model",
    )
    validate_every: int = Field(1, ge=1, description="rounds between validations")
    select: Literal["best", "last"] = Field(
        "best", description="the model that is tested; best: on validation data only"
    )
    stuck_after: int = Field(
        5,
        ge=0,
        description="say so, with what to try, when in so many validated rounds in a row the model has found nothing "
        "at any site, or at a site while others found something (0: never); see docs/explanation/training.md",
    )
    patience: int | None = Field(None, ge=1, description="stop after this many validations without a better one")


class PolicySettings(Section):
    """What other frameworks do by accident."""

    buffers: Literal["average", "keep", "largest"] = Field(
        "average",
        description="floating buffers: averaged, kept at the site, or the largest site's; integers are always those",
    )
    optimizer_state: Literal["keep", "reset"] = Field("keep", description="a site's optimiser state between rounds")
    skipped_rounds: Literal["keep", "reset"] = Field(
        "keep", description="what a site that skipped rounds comes back with: its old state or none"
    )
    absent_classes: Literal["count", "ignore"] = Field(
        "count",
        description="Dice loss of a class that no label of the batch holds: false positives count, or it is left out",
    )
    empty_masks: Literal["one-if-both-empty", "ignore", "penalise"] = Field(
        "one-if-both-empty", description="metrics of empty masks"
    )
    distance_penalty: Positive | Literal["diagonal"] = Field(
        "diagonal", description="distance when only one mask is empty"
    )


def learning_rate(settings: TrainingSettings, progress: float, rounds_done: float = math.inf) -> float:
    """The rate when a share ``progress`` in [0, 1) of the training is done, which are ``rounds_done`` rounds.

    It depends on nothing else, and is never 0. The warm-up counts rounds and no share, so that a longer run has the
    same; without ``rounds_done`` it is over.
    """
    rate = settings.lr
    if settings.schedule == "cosine":
        rate = settings.lr * 0.5 * (1 + math.cos(math.pi * progress))
    if settings.schedule == "poly":
        rate = float(settings.lr * (1 - progress) ** settings.poly_power)
    return rate * (1 + rounds_done) / (1 + settings.warmup) if rounds_done < settings.warmup else rate
