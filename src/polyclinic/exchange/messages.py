"""The only things that pass between server and site: named tensors and plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError, create_model
from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors, save_tensors
from polyclinic.exchange.tensor_names import join_names, owners_of, split_names, with_owners

Tensors = dict[str, Tensor]


def tensor_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Size of the numbers themselves."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@dataclass
class Broadcast:
    """Server to site: global weights, and what each component shares with the sites, by component name."""

    round: int
    weights: Tensors
    shared: dict[str, Tensors] = field(default_factory=dict)
    best_round: int | None = None

    @property
    def bytes(self) -> int:
        """Size of all tensors that travel."""
        return tensor_bytes(self.weights) + sum(map(tensor_bytes, self.shared.values()))


@dataclass
class Update:
    """Site to server: trained weights, how much training they hold, and what each component shares."""

    site: str
    round: int
    weights: Tensors
    samples: int
    steps: int
    shared: dict[str, Tensors] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """Size of all tensors that travel."""
        return tensor_bytes(self.weights) + sum(map(tensor_bytes, self.shared.values()))


@dataclass
class Evaluation:
    """Site to server: plain numbers. ``rows`` hold one value a case, class and metric; ``dice`` is the site's mean.

    A site that lets no value of a single case out sends ``stats`` instead of rows: mean, standard deviation and number
    of cases of each metric. ``note`` says what it held back, and why. ``background_only`` says after a validation that
    no pixel of any image was predicted as foreground.
    """

    site: str
    round: int
    images: int
    dice: float
    rows: list[dict[str, str | float]] = field(default_factory=list)
    stats: dict[str, dict[str, float]] = field(default_factory=dict)
    note: str = ""
    background_only: bool = False


@dataclass
class Failure:
    """A site that gave nothing this round, and why. ``details`` is the traceback, for the log, not for the screen."""

    site: str
    round: int
    reason: str
    details: str = ""


@dataclass
class Description:
    """Site to server, before the first round: what a site is, without a word about any single image.

    ``images`` counts them by split, ``refusal`` is why the site will not take part in this run, if it will not.
    """

    site: str
    round: int
    task: dict[str, Any]
    images: dict[str, int] = field(default_factory=dict)
    knows_spacing: bool = False
    split_sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    refusal: str = ""


Message = Broadcast | Update | Evaluation | Description | Failure
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Broadcast, Update, Evaluation, Description, Failure)
}
_TENSORS = ("weights", "shared")


def to_tensors(message: Message) -> tuple[Tensors, dict[str, Any]]:
    """Flatten a message into named tensors and plain data, for a disk or a wire."""
    groups = {"weights": getattr(message, "weights", {}), **with_owners("shared", getattr(message, "shared", {}))}
    plain = {k: v for k, v in vars(message).items() if k not in _TENSORS}
    return join_names(groups), {"kind": type(message).__name__, **plain}


def from_tensors(tensors: Mapping[str, Tensor], about: Any) -> Message:
    """Rebuild a message from named tensors and plain data; what came from elsewhere may be anything, and is checked."""
    if not isinstance(about, Mapping):
        raise PolyclinicError(f"A message was received whose plain data are a {type(about).__name__}, not a table.")
    kind = _KINDS.get(str(about.get("kind")))
    if kind is None:
        raise PolyclinicError(
            f"A message of kind '{about.get('kind')}' was received, expected one of {', '.join(_KINDS)}."
        )
    try:
        plain = _PLAIN[kind.__name__].validate_python({k: v for k, v in about.items() if k != "kind"}, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise PolyclinicError(
            f"A message ({kind.__name__}) was received whose '{key}' is wrong: {first['msg']}."
        ) from error
    given = {key: getattr(plain, key) for key in plain.model_fields_set}
    groups = split_names(tensors, owned=("shared",))
    unknown = next((group for group in groups if group != "weights" and not group.startswith("shared/")), None)
    if unknown is not None:
        raise PolyclinicError(f"A message ({kind.__name__}) was received with tensors of no known group ('{unknown}').")
    if kind is Broadcast or kind is Update:
        return kind(weights=groups.get("weights", {}), shared=owners_of("shared", groups), **given)
    if tensors:
        raise PolyclinicError(f"A message ({kind.__name__}) was received with {len(tensors)} tensors, expected none.")
    return kind(**given)


def _plain_of(kind: type[Message]) -> TypeAdapter[Any]:
    """What a message holds beside tensors, as pydantic checks it."""
    hints = {k: v for k, v in get_type_hints(kind).items() if k not in _TENSORS}
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    shape: dict[str, Any] = {name: (hint, ... if name in needed else None) for name, hint in hints.items()}
    return TypeAdapter(create_model(kind.__name__, __config__={"extra": "forbid"}, **shape))


_PLAIN = {name: _plain_of(kind) for name, kind in _KINDS.items()}


def save_message(path: Path, message: Message) -> None:
    """Write a message as one safetensors file."""
    save_tensors(path, *to_tensors(message))


def load_message(path: Path) -> Message:
    """Read what ``save_message`` wrote."""
    return from_tensors(*load_tensors(path))
