"""The tables ``[augmentation]`` and ``[strong]`` of a recipe."""

from __future__ import annotations

from pydantic import Field, field_validator

from polyclinic.recipe.section import Fraction, Positive, Section


class IntensitySettings(Section):
    """Changes of intensity; a probability of 0 switches an operation off."""

    contrast: Fraction = Field(0.0, description="probability of a contrast change")
    contrast_range: tuple[Positive, Positive] = (0.75, 1.25)
    brightness: Fraction = Field(0.0, description="probability of an additive shift")
    brightness_strength: float = Field(
        0.1, ge=0, description="standard deviation of that shift, in image standard deviations"
    )
    clip: bool = Field(False, description="cut intensities off at the image's own range after contrast and brightness")
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

    @property
    def affine_changes(self) -> tuple[str, ...]:
        """The changes in use that are one factor and one shift for a whole image; clipping makes them more."""
        return () if self.clip else tuple(key for key in ("contrast", "brightness") if getattr(self, key))


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
    """The strong view of unlabelled images, for methods that learn from them; the weak view has its geometry alone.

    Instance norm takes contrast and brightness out again, so the defaults clip, bend (gamma) and add noise too.
    """

    geometry: bool = Field(
        True, description="move both views as [augmentation] says; false: as they are, so that teachers look once"
    )
    contrast: Fraction = Field(0.8, description="probability of a contrast change")
    contrast_range: tuple[Positive, Positive] = (0.5, 2.0)
    brightness: Fraction = Field(0.8, description="probability of an additive shift")
    brightness_strength: float = Field(
        0.5, ge=0, description="standard deviation of that shift, in image standard deviations"
    )
    clip: bool = Field(True, description="cut intensities off at the image's own range after contrast and brightness")
    gamma: Fraction = Field(0.5, description="probability of a gamma change")
    gamma_range: tuple[Positive, Positive] = (0.5, 2.0)
    blur: Fraction = Field(0.5, description="probability of a Gaussian blur")
    blur_sigma: tuple[Positive, Positive] = (0.1, 2.0)
    noise: Fraction = Field(0.5, description="probability of Gaussian noise")
