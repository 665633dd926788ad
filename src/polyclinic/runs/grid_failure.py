"""What is said when runs of a grid have failed: after all others are done, so that one bad run costs no others."""

from __future__ import annotations

from collections.abc import Sequence

from polyclinic.core.errors import PolyclinicError
from polyclinic.runs.grid_progress import RunProgress

_MOST_NAMED = 20


class GridFailedError(PolyclinicError):
    """Some runs failed; each is named with its reason and its log."""

    def __init__(self, failed: Sequence[RunProgress], total: int) -> None:
        lines = [f"  {one.run.title}: {one.problem.rstrip('.')}; see {one.run.log}." for one in failed[:_MOST_NAMED]]
        more = [f"  and {len(failed) - _MOST_NAMED} more"] if len(failed) > _MOST_NAMED else []
        rest = "all others are done and in the tables; " if len(failed) < total else ""
        head = f"{len(failed)} of {total} runs failed; {rest}mend that and start the same command again:"
        super().__init__("\n".join([head, *lines, *more]))
        self.failed = tuple(failed)


def failure_of(error: Exception) -> str:
    """An error in one sentence: ours are written for people, of others the type says most."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, PolyclinicError) else f"{type(error).__name__}: {text}"
