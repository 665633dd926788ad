"""The only things that pass between server and site: named tensors and plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from polyclinic.errors import PolyclinicError
from polyclinic.files import load_tensors, save_tensors

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
    """Site to server: plain numbers. ``rows`` hold one value a case, class and metric; ``dice`` is the site's mean."""

    site: str
    round: int
    images: int
    dice: float
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Failure:
    """A site that gave nothing this round, and why. ``details`` is the traceback, for the log, not for the screen."""

    site: str
    round: int
    reason: str
    details: str = ""


def to_tensors(message: Broadcast | Update) -> tuple[Tensors, dict[str, Any]]:
    """Flatten a message into named tensors and plain data, for a disk or a wire."""
    tensors = {f"weights/{name}": tensor for name, tensor in message.weights.items()}
    for component, shared in message.shared.items():
        tensors |= {f"shared/{component}/{name}": tensor for name, tensor in shared.items()}
    plain = {k: v for k, v in vars(message).items() if k not in ("weights", "shared")}
    return tensors, {"kind": type(message).__name__, **plain}


def from_tensors(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Broadcast | Update:
    """Rebuild a message from named tensors and plain data."""
    weights: Tensors = {}
    shared: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "weights":
            weights[rest] = tensor
        else:
            component, _, inner = rest.partition("/")
            shared.setdefault(component, {})[inner] = tensor
    plain = {k: v for k, v in about.items() if k != "kind"}
    kinds: dict[str, type[Broadcast] | type[Update]] = {"Broadcast": Broadcast, "Update": Update}
    if about.get("kind") not in kinds:
        raise PolyclinicError(f"A message of kind '{about.get('kind')}' was received, expected Broadcast or Update.")
    return kinds[about["kind"]](weights=weights, shared=shared, **plain)


def save_message(path: Path, message: Broadcast | Update) -> None:
    """Write a message as one safetensors file."""
    save_tensors(path, *to_tensors(message))


def load_message(path: Path) -> Broadcast | Update:
    """Read what ``save_message`` wrote."""
    return from_tensors(*load_tensors(path))
