"""The table ``[network]`` of a recipe: a name, and the keys of the network of that name.

Every network has a settings class of its own. Those of the built-in networks are here; a plugin brings one along and
registers it with its network (``networks/registry.py``). A recipe may name a network whose plugin is not imported yet:
its table is then kept as it is (``UncheckedSettings``), and checked as soon as the class is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationInfo, field_validator, model_validator

from polyclinic.core.errors import PolyclinicError
from polyclinic.recipe.section import Section

DEFAULT_NETWORK = "unet"
AxisSizes = Annotated[tuple[Annotated[int, Field(ge=1, le=7)], ...], Field(min_length=2, max_length=3)]
"""A kernel or a stride along each axis."""
Prior = Annotated[float, Field(gt=0, lt=1)]


class NetworkSettings(Section):
    """The segmentation network: its name, and the keys of the network of that name."""

    ignored: ClassVar[frozenset[str]] = frozenset()
    """Keys of other networks that may stand in the table, so that a recipe can be tried with this one by its name."""

    name: str = Field(DEFAULT_NETWORK, description="unet, vit, pretrained, or a network of a plugin")

    def __new__(cls, **keys: Any) -> Self:
        """``NetworkSettings(name="vit", ...)`` gives an object of the class that is registered for that name."""
        return cast(Self, super().__new__(settings_class(keys) if cls is NetworkSettings else cls))

    @model_validator(mode="wrap")
    @classmethod
    def _of_that_name(cls, table: Any, check: ModelWrapValidatorHandler[Self]) -> Any:
        """Where a recipe's table is checked against this class, that of the network does it instead."""
        if cls is NetworkSettings and isinstance(table, Mapping):
            return settings_class(table)(**table)
        return check(table)

    @model_validator(mode="before")
    @classmethod
    def _without_keys_of_others(cls, table: Any) -> Any:
        """Refuse the keys of other networks unless they hold their default.

        The recipes of older run folders hold every key of every built-in network.
        """
        if cls is UncheckedSettings or not isinstance(table, Mapping):
            return table
        name = table.get("name", cls.model_fields["name"].default)
        return {key: value for key, value in table.items() if not cls._is_dropped(key, value, name)}

    @classmethod
    def _is_dropped(cls, key: str, value: Any, name: str) -> bool:
        owners = {owner: other for owner, other in NETWORK_SETTINGS.items() if key in other.model_fields}
        if key in cls.model_fields or not owners:
            return False
        if key not in cls.ignored and all(value != other.model_fields[key].default for other in owners.values()):
            names = " or ".join(f"'{owner}'" for owner in owners)
            raise ValueError(f"{key} needs name = {names}, not '{name}'; change the name or leave {key} out")
        return True

    @property
    def multiple(self) -> int | tuple[int, ...] | None:
        """How many times smaller the deepest map is than the image, along all axes or along each.

        None where only the built network knows.
        """
        return None

    @property
    def cancels_contrast(self) -> bool:
        """Whether the first norm takes out what one factor and one shift do to all intensities of an image."""
        return False

    @property
    def weights_file(self) -> str | None:
        """The file of frozen weights that every site needs, ``random`` for untrained ones, None without any."""
        return None


class ConvolutionSettings(NetworkSettings):
    """Keys of the convolutions that all built-in networks have: in the U-Net, and in the decoder of the others."""

    width: int = Field(16, ge=1, description="channels at full resolution, doubled at every level")
    norm: Literal["instance", "batch", "group", "batch-nostats"] = "instance"
    upsample: Literal["deconv", "linear"] = "deconv"
    bias: bool = Field(True, description="of the convolutions before a norm")
    dropout: float = Field(0.0, ge=0, lt=1)
    activation: Literal["relu", "leaky-relu"] = Field(
        "relu", description="after every norm; leaky-relu has a slope of 0.01 below 0, as in nnU-Net"
    )
    last_activation: Literal["same", "leaky-relu", "none"] = Field(
        "leaky-relu",
        description="behind the last norm, before the classifier; leaky-relu has a slope of 0.1 below 0 there, so that "
        "no class gets stuck as the one whose features are all off",
    )
    deep_supervision: bool = Field(
        False,
        description="auxiliary classifiers on the coarser decoder maps, with the weights of nnU-Net's; they are "
        "trained and sent, and not used for predictions",
    )
    prior_bias: Prior | tuple[Prior, ...] | None = Field(
        None,
        description="the share of pixels of each foreground class, such as 0.01, or of all one by one, that the "
        "classifier starts from; by default all classes are equally likely at first",
    )


class UNetSettings(ConvolutionSettings):
    """A U-Net in 2D or 3D."""

    name: str = "unet"
    depth: int = Field(4, ge=1, le=6, description="number of poolings; at most, with anisotropic = auto")
    anisotropic: Literal["off", "auto"] = Field(
        "off",
        description="auto: poolings and kernels follow the spacing by nnU-Net's rule; they are written into the run's "
        "recipe.toml",
    )
    poolings: tuple[AxisSizes, ...] | None = Field(
        None, description="the stride of each pooling along each axis, such as [[1, 2, 2], [2, 2, 2]]; by default 2"
    )
    kernels: tuple[AxisSizes, ...] | None = Field(
        None, description="kernels of each level, one more than poolings, odd, such as [[1, 3, 3], ...]; by default 3"
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> UNetSettings:
        for name, sizes, levels in (("poolings", self.poolings, self.depth), ("kernels", self.kernels, self.depth + 1)):
            if sizes is not None and len(sizes) != levels:
                raise ValueError(f"{name} has {len(sizes)} entries, and depth = {self.depth} needs {levels}")
            if sizes is not None and len({len(entry) for entry in sizes}) > 1:
                raise ValueError(f"{name} must have one number for each axis, as many in every entry")
        if any(size % 2 == 0 for entry in self.kernels or () for size in entry):
            raise ValueError("kernels must be odd numbers")
        return self

    @property
    def cancels_contrast(self) -> bool:
        """Instance norm does, after the first convolution, but for a margin of a pixel where images are padded."""
        return self.norm == "instance"

    @property
    def multiple(self) -> int | tuple[int, ...]:
        """Every pooling divides the map by its stride."""
        return int(2**self.depth) if self.poolings is None else tuple(map(prod, zip(*self.poolings, strict=True)))


class ViTSettings(ConvolutionSettings):
    """A vision transformer, trained from scratch, with a convolutional decoder."""

    ignored = frozenset({"depth"})

    name: str = "vit"
    patch: Literal[2, 4, 8, 16, 32] = Field(16, description="pixels of a token along each axis")
    embedding: int = Field(384, ge=1, description="numbers of a token, a multiple of heads")
    layers: int = Field(8, ge=1, description="transformer layers")
    heads: int = Field(6, ge=1, description="attention heads")
    mlp: int = Field(1536, ge=1, description="hidden numbers of the two-layer network in a layer")

    @model_validator(mode="after")
    def _heads_divide(self) -> ViTSettings:
        if self.embedding % self.heads:
            raise ValueError(f"embedding = {self.embedding} must be a multiple of heads = {self.heads}")
        return self

    @property
    def multiple(self) -> int:
        """One token a patch."""
        return self.patch


class PretrainedSettings(ConvolutionSettings):
    """A frozen encoder from the user's own file with a trained decoder, 2D only."""

    ignored = frozenset({"depth"})

    name: str = "pretrained"
    model: str | None = Field(None, description="the encoder: conch, chief, or the name of a timm model")
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

    @property
    def weights_file(self) -> str | None:
        """The encoder's."""
        return self.weights


class UncheckedSettings(NetworkSettings):
    """The table of a network that no imported file has registered yet: any keys, as they were written."""

    model_config = ConfigDict(extra="allow")


NETWORK_SETTINGS: dict[str, type[NetworkSettings]] = {
    "unet": UNetSettings,
    "vit": ViTSettings,
    "pretrained": PretrainedSettings,
}


def register_settings(name: str, settings: type[NetworkSettings]) -> None:
    """Make the settings class of a network known under the network's name."""
    if NETWORK_SETTINGS.setdefault(name, settings) is not settings:
        raise PolyclinicError(f"Two networks are called '{name}'; rename one of them.")


def settings_class(table: Mapping[str, Any]) -> type[NetworkSettings]:
    """The class that checks a table ``[network]``."""
    name = table.get("name", DEFAULT_NETWORK)
    return NETWORK_SETTINGS.get(name, UncheckedSettings) if isinstance(name, str) else UncheckedSettings
