"""A site's state between rounds, on the site's own disk, with a cache in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from safetensors.torch import save as to_bytes

from polyclinic.core.files import make_folder, write_private
from polyclinic.core.tensor_files import load_tensors, save_tensors
from polyclinic.core.wording import MB
from polyclinic.exchange.messages import Tensors, tensor_bytes
from polyclinic.exchange.tensor_names import join_names, owners_of, split_names, with_owners


@dataclass
class SiteState:
    """What a site carries from round to round; ``round`` is the last one it trained in, -1 before the first."""

    round: int = -1
    best_round: int | None = None
    personal: Tensors = field(default_factory=dict)
    best: Tensors = field(default_factory=dict)
    optimizer: Tensors = field(default_factory=dict)
    components: dict[str, Tensors] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of all tensors."""
        groups = (self.personal, self.best, self.optimizer, *self.components.values())
        return sum(tensor_bytes(group) for group in groups)

    def personal_at(self, best_round: int | None) -> Tensors:
        """Kept weights as of the best round, which are the current ones unless the site trained since."""
        return self.best if best_round is not None and self.best_round == best_round else self.personal

    def note_best(self, best_round: int | None) -> None:
        """Remember the kept weights of the round that the server now calls the best, before training changes them."""
        if best_round is not None and best_round != self.best_round and self.round <= best_round:
            self.best_round, self.best = best_round, dict(self.personal)


class StateMemory:
    """Newest states of the sites of a process, up to a limit, beside their files: the oldest make room.

    A state is put here by the thread that writes it to disk, while another site trains.
    """

    def __init__(self, limit_mb: float = 128) -> None:
        self.limit = limit_mb * MB
        self._states: dict[Path, tuple[SiteState, int]] = {}
        self._total = 0
        self._lock = Lock()

    def put(self, folder: Path, state: SiteState) -> None:
        """Keep a state, if it fits at all."""
        size = state.bytes
        with self._lock:
            self._remove(folder)
            if size > self.limit:
                return
            while self._total + size > self.limit:
                self._remove(next(iter(self._states)))
            self._states[folder] = state, size
            self._total += size

    def get(self, folder: Path, before: int) -> SiteState | None:
        """The state in memory, if a round ``before`` may start from it; only for reading."""
        with self._lock:
            state, _ = self._states.get(folder, (None, 0))
        return state if state is not None and state.round < before else None

    def drop(self, folder: Path) -> None:
        """Forget a state."""
        with self._lock:
            self._remove(folder)

    def _remove(self, folder: Path) -> None:
        _, size = self._states.pop(folder, (None, 0))
        self._total -= size


class SiteStore:
    """Files ``round-00007.safetensors``, a state each: the ``newest`` four, or as many as the server can go back to.

    A round is repeated from the state before it, so that a resumed run takes exactly the same steps. How far back that
    is, when this site has a state of round ``n`` and none of a later one:

    * The site has finished its part of round ``n`` and the server is killed: the server goes on with round ``n``, from
      its checkpoint of ``n`` rounds. The site needs a state before ``n``.
    * Where the server writes a checkpoint while sites train in the next round (``Server.fit``), it may have been killed
      before that of ``n`` rounds was on disk: it goes on with round ``n - 1``. Not earlier, because it takes no update
      of round ``n``, so that none of round ``n + 1`` is trained, before it is. A state before ``n - 1``.
    * In the round that it goes on with, the server may find that the round before spoilt the model and take that one
      back, once, as its checkpoint has the state before it (``federation/recovery.py``). A state before ``n - 2``.

    States of rounds ``n``, ``n - 1`` and ``n - 2`` may be there, so the one before them is the fourth at most; a site
    that takes part in fewer rounds has older ones among its four. Without the second case, at a server that waits for
    its checkpoint (``Server.round``), three are enough.
    """

    def __init__(self, folder: Path, memory: StateMemory | None = None, newest: int = 4) -> None:
        self.folder, self.newest = folder, newest
        self.memory = memory or StateMemory(0)
        self._ledger_file = folder / "ledger.safetensors"

    def _rounds(self) -> list[int]:
        return sorted(int(path.stem.split("-")[1]) for path in self.folder.glob("round-*.safetensors"))

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:05d}.safetensors"

    def take(self, before: int) -> SiteState:
        """The state that a round starts from, for the round to change."""
        state = self.load(before)
        self.memory.drop(self.folder)
        return state

    def load(self, before: int) -> SiteState:
        """The newest state of an earlier round, for reading."""
        newest = self.memory.get(self.folder, before)
        if newest is not None:
            return newest
        earlier = [number for number in self._rounds() if number < before]
        if not earlier:
            return SiteState()
        tensors, about = load_tensors(self._path(earlier[-1]))
        state = SiteState(about["round"], about["best_round"])
        groups = split_names(tensors, owned=("component",))
        state.personal, state.best = groups.get("personal", {}), groups.get("best", {})
        state.optimizer, state.components = groups.get("optimizer", {}), owners_of("component", groups)
        return state

    def save(self, state: SiteState) -> None:
        """Write the state of a round and drop those that no restart can need.

        A site that has never had anything to remember has no file: its next round starts from nothing, too.
        """
        groups = {"personal": state.personal, "best": state.best, "optimizer": state.optimizer}
        tensors = join_names({**groups, **with_owners("component", state.components)})
        if tensors or self._rounds():
            save_tensors(self._path(state.round), tensors, {"round": state.round, "best_round": state.best_round})
        else:
            make_folder(self.folder)  # it says that the site has taken part
        self.memory.put(self.folder, state)
        for number in self._rounds()[: -self.newest]:
            self._path(number).unlink(missing_ok=True)

    def finish(self, done: int, trains_on: bool) -> None:
        """Keep the state of the last of ``done`` rounds alone; what only training needs goes if there is none to come.

        Kept weights stay, as of the last round and of the best one: a prediction asks for either.
        """
        newest = self.load(before=done)
        if not trains_on and (newest.optimizer or newest.components):
            newest = replace(newest, optimizer={}, components={})
            if newest.bytes:
                self.save(newest)
        self.memory.drop(self.folder)
        for number in self._rounds():
            if number != newest.round or not newest.bytes:
                self._path(number).unlink(missing_ok=True)

    def ledgers(self) -> dict[str, Tensors]:
        """What components never take back, by component; one file for all rounds."""
        return split_names(load_tensors(self._ledger_file)[0]) if self._ledger_file.exists() else {}

    def save_ledgers(self, ledgers: Mapping[str, Tensors]) -> None:
        """Write them at once, readable by the owner alone: what they stand for is about to leave."""
        if ledgers:
            write_private(self._ledger_file, to_bytes(join_names(ledgers)))
