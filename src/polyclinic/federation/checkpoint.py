"""The server's checkpoint on disk: enough to resume after a kill with the same result."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write
from polyclinic.core.tensor_files import load_about, load_tensors, save_tensors
from polyclinic.exchange.messages import Tensors
from polyclinic.exchange.tensor_names import join_names, owners_of, split_names, with_owners
from polyclinic.federation.recovery import Returns
from polyclinic.federation.update_bounds import NormHistory

_OWNED = ("shared", "component", "unseen")
_UNSEEN = "unseen/"  # tensors of no component, in a group that has owners
_PLAIN = ("round", "best_round", "best_dice", "best_scores", "stale", "stopped")
# Written only where there are some, as earlier versions had none.
_SINCE_LATER = ("norms", "returns", "found_nothing", "found_nothing_at")


@dataclass
class ServerState:
    """State after ``round`` rounds are done (the next round has that number)."""

    round: int = 0
    weights: Tensors = field(default_factory=dict)
    shared: dict[str, Tensors] = field(default_factory=dict)
    components: dict[str, Tensors] = field(default_factory=dict)
    best_round: int | None = None
    best_dice: float | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    stale: int = 0
    stopped: bool = False
    norms: NormHistory = field(default_factory=dict)
    """How far the newest accepted updates of each site moved the model."""
    returns: Returns = field(default_factory=list)
    """Rounds that were taken back."""
    found_nothing: int = 0
    """Validated rounds in a row, up to now, in which no site found anything."""
    found_nothing_at: dict[str, int] = field(default_factory=dict)
    """The same by site, in which it found nothing while others found something."""


class Checkpoint:
    """``server.safetensors`` (the newest state) and ``best.safetensors`` (the best model on validation data).

    Beside them lies what the newest round replaced, ``server-before.safetensors`` and ``best-before.safetensors``, so
    that a round can be taken back.
    """

    def __init__(self, folder: Path) -> None:
        self.server = folder / "server.safetensors"
        self.best = folder / "best.safetensors"
        self.server_before = folder / "server-before.safetensors"
        self.best_before = folder / "best-before.safetensors"
        self._next = folder / "server-next.safetensors"

    def save(self, state: ServerState, new_best: bool, unseen: Tensors) -> None:
        """Write the best model first: a kill in between only repeats the round, with the same outcome.

        ``unseen`` are values of kept weights for sites that never took part; they belong to the model of the round.
        """
        model = {"weights": state.weights, _UNSEEN: unseen}
        if new_best:
            if _round_of(self.best) != state.best_round:  # else the round is repeated after a kill
                _keep(self.best, self.best_before)
            save_tensors(self.best, join_names(model), {"round": state.best_round})
        else:
            self.best_before.unlink(missing_ok=True)
        # The state is written whole before the older one moves: a kill never leaves two equal ones for long.
        save_tensors(self._next, *_flat(state, unseen))
        try:
            _keep(self.server, self.server_before)
            self._next.replace(self.server)
        finally:
            self._next.unlink(missing_ok=True)

    def can_take_back(self, number: int) -> bool:
        """Whether a round, which must be the newest, can be taken back."""
        return number == 0 or _round_of(self.server_before) == number

    def take_back(self, first: ServerState, returns: Returns) -> ServerState:
        """Make the state before the newest round the newest one; ``first`` is that before any round."""
        tensors, about = load_tensors(self.server_before) if self.server_before.exists() else _flat(first, {})
        if self.best.exists() and _round_of(self.best) != about["best_round"]:
            if self.best_before.exists() and _round_of(self.best_before) == about["best_round"]:
                self.best_before.replace(self.best)
            else:
                self.best.unlink()
        save_tensors(self.server, tensors, {**about, "returns": returns})
        self.server_before.unlink(missing_ok=True)
        return self.load() or first

    def finish(self, trains_on: bool) -> None:
        """Remove what only a round that is still to come could need; if none can, the components' memory too."""
        for path in (self.server_before, self.best_before, self._next):
            path.unlink(missing_ok=True)
        if not trains_on and self.server.exists():
            tensors, about = load_tensors(self.server)
            groups = split_names(tensors, owned=_OWNED)
            model = {name: groups[name] for name in ("weights", _UNSEEN) if name in groups}
            if model.keys() != groups.keys():
                save_tensors(self.server, join_names(model), about)

    def load(self) -> ServerState | None:
        """The newest state, or ``None`` when there is none yet."""
        if not self.server.exists():
            return None
        tensors, about = load_tensors(self.server)
        if "round" not in about:
            raise PolyclinicError(f"{self.server}: not a checkpoint of a run; start a new run without --resume.")
        state = ServerState(**about)
        state.returns = [(int(number), str(site), str(reason)) for number, site, reason in state.returns]
        groups = split_names(tensors, owned=_OWNED)
        state.weights = groups.get("weights", {})
        state.shared, state.components = owners_of("shared", groups), owners_of("component", groups)
        return state

    def load_model(self, which: str) -> tuple[Tensors, Tensors, int]:
        """The ``best`` or ``last`` model: weights, kept weights for unseen sites, and its round."""
        path = self.best if which == "best" and self.best.exists() else self.server
        if not path.exists():
            raise PolyclinicError(f"{path}: there is no model yet; finish the run with --resume first.")
        tensors, about = load_tensors(path)
        groups = split_names(tensors, owned=_OWNED)
        number = about["round"] if path == self.best else about["round"] - 1
        return groups.get("weights", {}), groups.get(_UNSEEN, {}), number


def _flat(state: ServerState, unseen: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """A state as a file holds it: named tensors, and plain data."""
    model = {"weights": state.weights, _UNSEEN: unseen}
    groups = {**model, **with_owners("shared", state.shared), **with_owners("component", state.components)}
    later = [key for key in _SINCE_LATER if getattr(state, key)]
    return join_names(groups), {key: getattr(state, key) for key in (*_PLAIN, *later)}


def _keep(newest: Path, before: Path) -> None:
    """Let ``before`` be what ``newest`` is now, without a copy where the file system can."""
    if not newest.exists():
        return
    try:
        with atomic_write(before, sync=False) as temporary:
            temporary.unlink(missing_ok=True)  # of a killed process that had this number
            os.link(newest, temporary)
    except PolyclinicError:  # the file system has no links, or is full, which the copy then says
        with atomic_write(before) as temporary:
            shutil.copyfile(newest, temporary)


def _round_of(path: Path) -> int | None:
    """The number of rounds in a state, or the round of a best model."""
    return int(load_about(path)["round"]) if path.exists() else None
