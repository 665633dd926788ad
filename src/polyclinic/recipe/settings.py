"""The recipe: what a user writes, validated, with a default for everything but the federation.

Nothing heavy is imported here, so that a wrong key is reported at once.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A table of the recipe: frozen, strict about unknown keys, numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSettings(Section):
    """How files become tensors."""

    sites: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        None, description="use these sites of the federation alone; all by default"
    )
    labelled: Annotated[int, Field(ge=1, strict=True)] | Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="labelled training images (or slices) of each site: a number, or a share below 1; other labels of "
        "training images are never read",
    )
    size: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=3)] | Literal["auto"] = (
        Field(
            "auto",
            description="size of every prepared image; auto: the median size, rounded to what the network accepts",
        )
    )
    crop: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None,
        description="cut this much out of the middle before data.size, in pixels of each axis; what is smaller stays",
    )
    fit: Literal["resize", "pad-crop"] = Field("resize", description="how an image is brought to that size")
    patch: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None, description="train on random patches of this size; slide a window at inference"
    )
    orientation: str | None = Field(None, description="axis codes such as RAS, for volumes whose files know them")
    spacing: tuple[Positive, ...] | None = Field(None, description="resample to this spacing in mm first")
    intensity: Literal["zero-one", "full-range", "z-score", "percentile", "none"] = Field(
        "zero-one",
        description="per image and channel; full-range: bytes (or 16 bits) to 0-1, which keeps colour and brightness",
    )
    percentiles: tuple[float, float] = Field(
        (1.0, 99.0), description="the clip of intensity = percentile, scaled to 0-1"
    )
    nonzero: bool = Field(False, description="z-score over non-zero voxels only")
    slice_axis: Literal[0, 1, 2] = Field(2, description="the axis that 3D volumes are cut along when the task is 2D")
    neighbours: int = Field(0, ge=0, description="slices on each side added as channels, for a 2D task on volumes")
    split: tuple[Fraction, Fraction, Fraction] = Field((0.6, 0.2, 0.2), description="train, val, test by case")
    split_from: Literal["auto", "recipe"] = Field(
        "auto", description="auto: the manifest's split column when it has one"
    )
    case_pattern: str | None = Field(
        None, description="regular expression whose first group is the case of a file name"
    )
    memory_limit_mb: float = Field(4096, ge=0, description="prepared tensors of a site above this are memory-mapped")
    cache: str | None = Field(None, description="folder of that cache; default: polyclinic's cache folder")

    @field_validator("labelled", mode="before")
    @classmethod
    def _number_or_share(cls, labelled: Any) -> Any:
        number = isinstance(labelled, int | float) and not isinstance(labelled, bool)
        if labelled is not None and not (number and (0 < labelled < 1 or (isinstance(labelled, int) and labelled > 0))):
            raise ValueError("it must be a whole number from 1, or a share above 0 and below 1")
        return labelled

    @field_validator("sites")
    @classmethod
    def _once(cls, sites: tuple[str, ...] | None) -> tuple[str, ...] | None:
        doubled = [site for site in sites or () if (sites or ()).count(site) > 1]
        if doubled:
            raise ValueError(f"'{doubled[0]}' is there twice; name each site once")
        return sites

    @model_validator(mode="after")
    def _split_sums_to_one(self) -> DataSettings:
        if abs(sum(self.split) - 1) > 1e-6 or self.split[0] == 0:
            raise ValueError("split must sum to 1 with a training share above 0, such as [0.6, 0.2, 0.2]")
        if not 0 <= self.percentiles[0] < self.percentiles[1] <= 100:
            raise ValueError("percentiles must rise from 0 to 100, such as [1, 99]")
        return self


class IntensitySettings(Section):
    """Changes of intensity; a probability of 0 switches an operation off."""

    contrast: Fraction = Field(0.0, description="probability of a contrast change")
    contrast_range: tuple[Positive, Positive] = (0.75, 1.25)
    brightness: Fraction = Field(0.0, description="probability of an additive shift")
    brightness_strength: float = Field(
        0.1, ge=0, description="standard deviation of that shift, in image standard deviations"
    )
    gamma: Fraction = Field(0.0, description="probability of a gamma change")
    gamma_range: tuple[Positive, Positive] = (0.7, 1.5)
    blur: Fraction = Field(0.0, description="probability of a Gaussian blur")
    blur_sigma: tuple[Positive, Positive] = (0.5, 1.5)
    noise: Fraction = Field(0.0, description="probability of Gaussian noise")
    noise_strength: float = Field(
        0.1, ge=0, description="standard deviation of the noise, in image standard deviations"
    )

    @field_validator("contrast_range", "gamma_range", "blur_sigma")
    @classmethod
    def _rises(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if ends[0] > ends[1]:
            raise ValueError(f"{list(ends)} must rise from low to high")
        return ends


class AugmentationSettings(IntensitySettings):
    """Batched augmentation on the device; a probability of 0 switches an operation off."""

    flip: Fraction = Field(0.0, description="probability of mirroring, for each axis")
    affine: Fraction = Field(0.0, description="probability of rotation, scaling and translation together")
    rotation: float = Field(20.0, ge=0, description="largest angle in degrees")
    scaling: float = Field(0.1, ge=0, lt=1, description="largest relative change of size")
    translation: float = Field(0.1, ge=0, description="largest shift as a share of the image")
    elastic: Fraction = Field(0.0, description="probability of an elastic deformation")
    elastic_grid: int = Field(8, ge=2, description="control points along each axis")
    elastic_strength: float = Field(
        0.03, ge=0, description="standard deviation of a control point's shift, share of the image"
    )

    @property
    def moves(self) -> bool:
        """Whether any image changes its geometry."""
        return max(self.flip, self.affine, self.elastic) > 0


class StrongSettings(IntensitySettings):
    """The strong view of unlabelled images, for methods that learn from them; the weak view has its geometry alone."""

    geometry: bool = Field(
        True, description="move both views as [augmentation] says; false: as they are, so that teachers look once"
    )
    contrast: Fraction = Field(0.8, description="probability of a contrast change")
    contrast_range: tuple[Positive, Positive] = (0.5, 1.5)
    brightness: Fraction = Field(0.8, description="probability of an additive shift")
    brightness_strength: float = Field(
        0.3, ge=0, description="standard deviation of that shift, in image standard deviations"
    )
    blur: Fraction = Field(0.5, description="probability of a Gaussian blur")
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)


class NetworkSettings(Section):
    """The segmentation network."""

    name: str = Field("unet", description="unet, vit, or pretrained: a frozen encoder with a trained decoder")
    width: int = Field(16, ge=1, description="channels at full resolution, doubled at every level")
    depth: int = Field(4, ge=1, le=6, description="number of poolings of unet; of the others patch or model decides")
    norm: Literal["instance", "batch", "group", "batch-nostats"] = "instance"
    upsample: Literal["deconv", "linear"] = "deconv"
    bias: bool = Field(True, description="of the convolutions before a norm")
    dropout: float = Field(0.0, ge=0, lt=1)
    patch: Literal[2, 4, 8, 16, 32] = Field(16, description="pixels of a token of vit along each axis")
    embedding: int = Field(384, ge=1, description="numbers of a token of vit, a multiple of heads")
    layers: int = Field(8, ge=1, description="transformer layers of vit")
    heads: int = Field(6, ge=1, description="attention heads of vit")
    mlp: int = Field(1536, ge=1, description="hidden numbers of the two-layer network in a layer of vit")
    model: str | None = Field(None, description="encoder of pretrained: conch, chief, or the name of a timm model")
    weights: str | None = Field(None, description='safetensors file of that encoder, or "random" for an untrained one')
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        None, validate_default=True, description="of that file, checked when it is read; by default the file's own"
    )

    @field_validator("weights")
    @classmethod
    def _absolute(cls, weights: str | None) -> str | None:
        """A run's recipe must find the file from any folder."""
        path = Path(weights or "").expanduser()
        return str(path.resolve()) if path.is_file() and weights != "random" else weights

    @field_validator("sha256")
    @classmethod
    def _of_the_file(cls, wanted: str | None, info: ValidationInfo) -> str | None:
        """Written down with the run, so that its model is never used with another encoder."""
        path = Path(info.data.get("weights") or "")
        if wanted is not None or not path.is_file():
            return wanted
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @model_validator(mode="after")
    def _heads_divide(self) -> NetworkSettings:
        if self.embedding % self.heads:
            raise ValueError(f"embedding = {self.embedding} must be a multiple of heads = {self.heads}")
        return self

    @model_validator(mode="after")
    def _encoder_is_asked_for(self) -> NetworkSettings:
        """A forgotten name would train another network in silence."""
        if self.name in ("unet", "vit") and (self.model or self.weights):
            raise ValueError(f"model and weights need name = 'pretrained', not '{self.name}'; change one of them")
        for key in ("patch", "embedding", "layers", "heads", "mlp"):
            default = type(self).model_fields[key].default
            if self.name in ("unet", "pretrained") and getattr(self, key) != default:
                raise ValueError(f"{key} needs name = 'vit', not '{self.name}'; change the name or leave {key} out")
        return self


class TrainingSettings(Section):
    """Local training and rounds."""

    rounds: int = Field(20, ge=1)
    local_epochs: int = Field(1, ge=1)
    steps_per_epoch: int | None = Field(
        None,
        ge=1,
        description="optimiser steps of a local epoch, the same at every site and for every method; by default a walk "
        "over the labelled images, or (labelled + unlabelled) / (2 batch_size) steps where a method learns from both",
    )
    batch_size: int = Field(6, ge=1)
    loss: Literal["dice-ce", "dice-ce-mean", "ce", "dice"] = Field(
        "dice-ce", description="dice-ce adds both, -mean halves the sum"
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
    clip_gradients: Positive | None = Field(None, description="largest norm of the gradient")
    amp: Literal["auto", "off"] = Field("auto", description="mixed precision on GPUs")
    participation: Annotated[float, Field(gt=0)] = Field(
        1.0, description="share of the sites in a round (1: all of them), or their number (above 1)"
    )
    quorum: Annotated[float, Field(gt=0)] = Field(
        0.5,
        description="share of the chosen sites that must return a good update (1: all of them), or their number "
        "(above 1)",
    )
    validate_every: int = Field(1, ge=1, description="rounds between validations")
    select: Literal["best", "last"] = Field(
        "best", description="the model that is tested; best: on validation data only"
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


class EvaluationSettings(Section):
    """What is measured."""

    metrics: Annotated[
        tuple[Literal["dice", "iou", "precision", "sensitivity", "hd95", "asd", "assd"], ...], Field(min_length=1)
    ] = (
        "dice", "iou", "precision", "sensitivity", "hd95", "asd", "assd",
    )  # fmt: skip
    units: Literal["auto", "pixel", "mm"] = Field(
        "auto", description="of distances; auto: mm if the files of every site know their spacing"
    )
    per: Literal["auto", "image", "volume"] = Field(
        "auto", description="slices of a volume one by one, or stacked; auto: stacked for tasks on volumes"
    )
    batch_size: int = Field(16, ge=1)
    overlap: float = Field(0.5, ge=0, lt=1, description="of sliding windows")


class ProtocolSettings(Section):
    """How a method is judged."""

    kind: Literal["own-test", "leave-one-site-out", "k-fold"] = "own-test"
    folds: int = Field(5, ge=2)
    transfer: bool = Field(False, description="also test every site's own model at every other site (one machine only)")


class EngineSettings(Section):
    """Where sites run."""

    name: str = Field("inprocess", description="inprocess, flower (processes that speak over a network), or simulation")
    threads: int = Field(
        1, ge=1, description="threads of a process; results are bit for bit equal only for equal numbers"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    deadline: Positive | None = Field(
        None,
        description="flower: seconds that a site has for its part of a round; by default ten times what half of the "
        "sites took, and ten minutes at least",
    )
    gather: float = Field(
        60.0, ge=0, description="flower: seconds to wait for all sites before starting with those that are there"
    )
    grace: float = Field(
        60.0, ge=0, description="flower: seconds that a site may be away in a round before it goes on without it"
    )
    max_message_mb: Positive = Field(2048, description="flower: largest answer of a site that the server takes in")


class TrackingSettings(Section):
    """Optional trackers beside the run folder."""

    tensorboard: bool = False
    mlflow: bool = False
    mlflow_uri: str | None = Field(
        None, description="default: MLflow's own environment variable, or a file in the run folder"
    )


class Recipe(Section):
    """Everything that one run depends on."""

    federation: str
    method: str = "fedavg"
    seed: int = Field(0, ge=0)
    plugins: tuple[str, ...] = Field((), description="Python files or modules that register methods of your own")
    data: DataSettings = DataSettings()
    augmentation: AugmentationSettings = AugmentationSettings()
    strong: StrongSettings = StrongSettings()
    network: NetworkSettings = NetworkSettings()
    training: TrainingSettings = TrainingSettings()
    protocol: ProtocolSettings = ProtocolSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    policies: PolicySettings = PolicySettings()
    engine: EngineSettings = EngineSettings()
    tracking: TrackingSettings = TrackingSettings()
