"""A request of the server to a site: an act, the recipe it belongs to, and a broadcast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from torch import Tensor

from polyclinic.core.errors import PolyclinicError
from polyclinic.exchange.messages import Broadcast, Tensors, from_tensors, to_tensors

Act = Literal["describe", "train", "evaluate"]
_SPLITS: dict[str, tuple[str, ...]] = {"describe": ("",), "train": ("",), "evaluate": ("val", "test")}
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass
class Request:
    """``run`` names the run across restarts of everything; ``part`` the training of its protocol."""

    act: Act
    run: str
    part: str
    recipe: str
    split: str = ""
    detailed: bool = False
    broadcast: Broadcast = field(default_factory=lambda: Broadcast(-1, {}))
    task: dict[str, Any] = field(default_factory=dict)
    """The task that the sites agreed on, once they have."""
    site: str = ""
    """Under which name the coordinator knows the key of the site that this goes to."""

    def to_tensors(self) -> tuple[Tensors, dict[str, Any]]:
        """Named tensors and plain data."""
        tensors, about = to_tensors(self.broadcast)
        plain = {k: v for k, v in asdict(_without_broadcast(self)).items() if k != "broadcast"}
        return tensors, {**plain, "broadcast": about}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Request:
        """Read a request; its names become folders at the site, so they are checked."""
        plain = {k: v for k, v in about.items() if k != "broadcast"}
        broadcast = from_tensors(tensors, about.get("broadcast", {}))
        try:
            request = cls(**plain, broadcast=broadcast)  # type: ignore[arg-type]
        except TypeError as error:
            raise PolyclinicError(f"A request was received that is none ({error}).") from error
        if request.act not in get_args(Act) or not isinstance(broadcast, Broadcast):
            raise PolyclinicError(f"A request was received to '{request.act}', expected {', '.join(get_args(Act))}.")
        for name in (request.run, request.part):
            if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name) or ".." in name:
                raise PolyclinicError(f"A request was received for a run or part called {name!r}, which is no name.")
        if not isinstance(request.recipe, str) or not isinstance(request.detailed, bool):
            raise PolyclinicError("A request was received whose recipe is no text, or whose detailed is not yes or no.")
        if not isinstance(request.task, dict):
            raise PolyclinicError("A request was received whose task is no table.")
        if request.split not in _SPLITS[request.act]:
            raise PolyclinicError(f"A request was received to {request.act} the split {request.split!r}.")
        return request


def _without_broadcast(request: Request) -> Request:
    """The request with an empty broadcast: ``asdict`` would copy every tensor."""
    return replace(request, broadcast=Broadcast(-1, {}))
