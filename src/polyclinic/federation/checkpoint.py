"""The server's memory on disk: enough to go on after a kill as if nothing had happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from polyclinic.errors import PolyclinicError
from polyclinic.federation.messages import Tensors
from polyclinic.files import load_tensors, save_tensors


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
        if new_best:
            model = {f"weights/{name}": t for name, t in state.weights.items()} | _flat("unseen", {"": unseen})
            save_tensors(self.best, model, {"round": state.best_round})
        tensors = {f"weights/{name}": tensor for name, tensor in state.weights.items()}
        tensors |= _flat("shared", state.shared) | _flat("component", state.components) | _flat("unseen", {"": unseen})
        plain = ("round", "best_round", "best_dice", "best_scores", "stale", "stopped")
        save_tensors(self.server, tensors, {key: getattr(state, key) for key in plain})

    def load(self) -> ServerState | None:
        """The newest state, or ``None`` when there is none yet."""
        if not self.server.exists():
            return None
        tensors, about = load_tensors(self.server)
        if "round" not in about:
            raise PolyclinicError(f"{self.server}: not a checkpoint of a run; start a new run without --resume.")
        state = ServerState(**about)
        for full_name, tensor in tensors.items():
            kind, _, name = full_name.partition("/")
            if kind == "weights":
                state.weights[name] = tensor
            elif kind in ("shared", "component"):
                owner, _, inner = name.partition("/")
                held = state.shared if kind == "shared" else state.components
                held.setdefault(owner, {})[inner] = tensor
        return state

    def load_model(self, which: str) -> tuple[Tensors, Tensors, int]:
        """The ``best`` or ``last`` model: weights, kept weights for unseen sites, and its round."""
        path = self.best if which == "best" and self.best.exists() else self.server
        if not path.exists():
            raise PolyclinicError(f"{path}: there is no model yet; finish the run with --resume first.")
        tensors, about = load_tensors(path)
        weights = {n.partition("/")[2]: t for n, t in tensors.items() if n.startswith("weights/")}
        unseen = {n.partition("//")[2]: t for n, t in tensors.items() if n.startswith("unseen/")}
        number = about["round"] if path == self.best else about["round"] - 1
        return weights, unseen, number


def _flat(kind: str, held: dict[str, Tensors]) -> Tensors:
    return {f"{kind}/{owner}/{name}": tensor for owner, tensors in held.items() for name, tensor in tensors.items()}
