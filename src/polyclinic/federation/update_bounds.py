"""How far an update may move the model: measured against the global weights, the other sites and the rounds before.

One finite update of enormous values would end a run for good. Norms are of the whole change of the parameters, because
a single tensor may start at zero; buffers hold a site's own intensities and are only compared when a model broke.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, inf, isfinite
from statistics import median

import torch
from torch import Tensor

from polyclinic.core.tensor_pieces import in_pieces
from polyclinic.exchange.messages import Update

NormHistory = dict[str, list[list[float]]]
"""By site, newest last: the round, and the norms of the accepted update's change of parameters and of buffers.

Where components share numbers, how far those stand out follows (``shared_bounds.py``).
"""

_ROUND, _PARAMETERS, _BUFFERS, _SHARED = range(4)
_REMEMBERED = 10  # accepted updates of each site: a site has one voice, however often it took part
_SMALLEST_SCALE = 1.0  # of a model's norm, for one that starts at zero


class UpdateBounds:
    """Judges the updates of one round; ``history`` are the rounds before it."""

    def __init__(
        self, ratio: float | str, number: int, previous: Mapping[str, Tensor], buffers: frozenset[str],
        history: NormHistory,
    ) -> None:  # fmt: skip
        self.ratio, self.number = ratio, number
        self.history = {site: [list(entry) for entry in entries] for site, entries in history.items()}
        self._previous = {n: t for n, t in previous.items() if t.is_floating_point()}
        self._parameters = sorted(n for n in self._previous if n not in buffers)
        self._buffers = sorted(n for n in self._previous if n in buffers)
        model = (torch.linalg.vector_norm(self._previous[name], dtype=torch.float64) for name in self._parameters)
        self.scale = max(_SMALLEST_SCALE, hypot(*map(float, model)))

    def accept(self, update: Update) -> str | None:
        """Why an update must be refused, in one sentence, or ``None``; then it counts for those that follow.

        The first of a run has nothing to be compared with: it is judged by ``outliers``, when the others are there.
        """
        entry = [float(self.number), self._change(update, self._parameters), self._change(update, self._buffers)]
        known = usual_norm(self.history, update.site, _PARAMETERS, self.number) is not None
        problem = self._problem(update.site, entry[_PARAMETERS]) if known else None
        if problem is None:
            self.history[update.site] = [*self.history.get(update.site, []), entry][-_REMEMBERED:]
        return problem

    def outliers(self) -> dict[str, str]:
        """Accepted updates of the round that the sites after them show to be too large, with the reason, by site."""
        accepted = {site: entries[-1] for site, entries in self.history.items() if entries[-1][_ROUND] == self.number}
        problems = {site: self._problem(site, entry[_PARAMETERS]) for site, entry in accepted.items()}
        return {site: problem for site, problem in problems.items() if problem is not None}

    def forget(self, site: str) -> None:
        """Take back the acceptance of a site's update of this round."""
        self.history[site] = [entry for entry in self.history[site] if entry[_ROUND] != self.number]
        if not self.history[site]:
            del self.history[site]

    def note_shared(self, shared: Mapping[str, float]) -> None:
        """Remember how far what sites shared in this round stands out, for a model that breaks later."""
        for site, times in shared.items():
            entries = self.history.get(site, [])
            if entries and entries[-1][_ROUND] == self.number:
                entries[-1][_SHARED:] = [times]

    def _change(self, update: Update, names: list[str]) -> float:
        """The norm of what an update changes in the named tensors."""
        return hypot(*(_distance(update.weights[name], self._previous[name]) for name in names))

    def _problem(self, site: str, norm: float) -> str | None:
        if isinstance(self.ratio, str):  # off
            return None
        usual = usual_norm(self.history, site, _PARAMETERS, self.number)
        # An update that moves the model by less than its own size is never refused, however little others do.
        limit = self.ratio * self.scale if usual is None else max(self.ratio * usual, self.scale)
        if norm <= limit:
            return None
        compared, what = (self.scale, "the size of the model") if usual is None else (usual, "what is usual here")
        times = norm / compared if compared else inf
        return (
            f"it changes the weights by {norm:.3g}, {times:.3g} times {what} ({compared:.3g}); "
            f"training.max_update_ratio allows {self.ratio:g}"
        )


def usual_norm(history: NormHistory, site: str, kind: int, number: int) -> float | None:
    """The median over the other sites of each one's median; a site on its own is compared with its earlier rounds.

    No site can raise what is usual for itself while there are others.
    """
    others = [median(entry[kind] for entry in entries) for name, entries in history.items() if name != site and entries]
    if others:
        return median(others)
    own = [entry[kind] for entry in history.get(site, []) if entry[_ROUND] != number]
    return median(own) if own else None


def deviations(history: NormHistory, number: int) -> dict[str, float]:
    """By site of a round, how many times the usual its update changed parameters or buffers, whichever is more.

    What it shared counts too: a model may break of that, and then no site is to be blamed for its weights.
    """
    result = {}
    for site, entries in history.items():
        for entry in entries:
            if entry[_ROUND] == number:
                usual = {kind: usual_norm(history, site, kind, number) for kind in (_PARAMETERS, _BUFFERS)}
                result[site] = max(*(_times(entry[kind], value) for kind, value in usual.items()), *entry[_SHARED:])
    return result


def _times(norm: float, usual: float | None) -> float:
    if usual is None or norm <= 0:
        return 1.0
    return norm / usual if usual > 0 else inf


def _distance(new: Tensor, old: Tensor) -> float:
    """The Euclidean norm of the difference of two tensors.

    In single precision within a piece, in double precision between pieces: six digits in half of the time. Only what
    overflows is computed again.
    """
    norms = []
    for new_piece, old_piece in in_pieces(new, old):
        change = new_piece - old_piece
        norm = float(torch.linalg.vector_norm(change))
        norms.append(norm if isfinite(norm) else float(torch.linalg.vector_norm(change, dtype=torch.float64)))
    return hypot(*norms)
