"""The table ``[data]`` of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from polyclinic.recipe.section import Fraction, Positive, Section


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
    label_seed: int | None = Field(
        None, ge=0, description="seed of the draw of those images; the recipe's seed by default, which also trains"
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
    foreground: Fraction = Field(
        0.5, description="share of those patches that are centred on a voxel of a random foreground class"
    )
    orientation: str | None = Field(None, description="axis codes such as RAS, for volumes whose files know them")
    spacing: tuple[Positive, ...] | None = Field(None, description="resample to this spacing in mm first")
    intensity: Literal["zero-one", "full-range", "z-score", "percentile", "site", "none"] = Field(
        "zero-one",
        description="per image and channel; full-range: bytes (or 16 bits) to 0-1, which keeps colour and brightness; "
        "site: mean 0 and deviation 1 over all training images of the site, by numbers that stay there",
    )
    intensity_statistics: Literal["scalar", "channel"] = Field(
        "scalar", description="of intensity = site: one mean and deviation for all channels, or one of each channel"
    )
    percentiles: tuple[float, float] = Field(
        (1.0, 99.0), description="the clip of intensity = percentile, scaled to 0-1"
    )
    nonzero: bool = Field(False, description="z-score and site: over non-zero voxels only, the others stay 0")
    slice_axis: Literal[0, 1, 2] = Field(2, description="the axis that 3D volumes are cut along when the task is 2D")
    neighbours: int = Field(0, ge=0, description="slices on each side added as channels, for a 2D task on volumes")
    split: tuple[Fraction, Fraction, Fraction] = Field((0.6, 0.2, 0.2), description="train, val, test by case")
    split_from: Literal["auto", "recipe"] = Field(
        "auto", description="auto: the manifest's split column when it has one"
    )
    case_pattern: str | None = Field(
        None,
        description="regular expression whose first group is the case of a file name; sites elsewhere use their own",
    )
    memory_limit_mb: float = Field(
        4096,
        ge=0,
        description="most prepared tensors of a site (MB, 10^6 bytes) that are held in memory where there is no cache",
    )
    cache: str | None = Field(
        None,
        description="folder where prepared images are kept and mapped from, readable by its owner alone; "
        'default: polyclinic\'s cache folder; "off": they are in memory and on no disk',
    )
    cache_limit_mb: float = Field(
        20000, ge=0, description="most disk of that folder (MB); what was not used for longest makes room"
    )

    @property
    def value_range(self) -> tuple[float, float] | None:
        """What all prepared intensities lie between; None where they have no bounds."""
        return (0.0, 1.0) if self.intensity in ("zero-one", "full-range", "percentile") else None

    @property
    def keeps_style(self) -> bool:
        """Whether images may still differ in their mean and deviation."""
        return self.intensity != "z-score"

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
        if self.label_seed is not None and self.labelled is None:
            raise ValueError("label_seed draws the images of labelled, which is not set; give data.labelled a number")
        return self
