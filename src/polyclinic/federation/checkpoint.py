"""The server's checkpoint on disk: enough to resume after a kill with the same result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tensor_files import load_tensors, save_tensors
from polyclinic.exchange.messages import Tensors
from polyclinic.exchange.tensor_names import join_names, owners_of, split_names, with_owners

_OWNED = ("shared", "component", "unseen")
_UNSEEN = "unseen/"  # tensors of no component, in a group that has owners


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


class Checkpoint:
    """``server.safetensors`` (the newest state) and ``best.safetensors`` (the best model on validation data)."""

    def __init__(self, folder: Path) -> None:
        self.server = folder / "server.safetensors"
        self.best = folder / "best.safetensors"

    def save(self, state: ServerState, new_best: bool, unseen: Tensors) -> None:
        """Write the best model first: a kill in between only repeats the round, with the same outcome.

        ``unseen`` are values of kept weights for sites that never took part; they belong to the model of the round.
        """
        model = {"weights": state.weights, _UNSEEN: unseen}
        if new_best:
            save_tensors(self.best, join_names(model), {"round": state.best_round})
        groups = {**model, **with_owners("shared", state.shared), **with_owners("component", state.components)}
        plain = ("round", "best_round", "best_dice", "best_scores", "stale", "stopped")
        save_tensors(self.server, join_names(groups), {key: getattr(state, key) for key in plain})

    def load(self) -> ServerState | None:
        """The newest state, or ``None`` when there is none yet."""
        if not self.server.exists():
            return None
        tensors, about = load_tensors(self.server)
        if "round" not in about:
            raise PolyclinicError(f"{self.server}: not a checkpoint of a run; start a new run without --resume.")
        state = ServerState(**about)
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
