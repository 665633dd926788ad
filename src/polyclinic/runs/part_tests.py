"""The tests of one part of a protocol, as files beside its checkpoint: the last one, and those after chosen rounds.

``tested.json`` and ``tested-round-40.json`` are written after the rows (``cases.csv``, ``cases-round-40.csv``): where
one is there, the test is done. A test after a round also says which rounds had been taken back by then: a round that
was repeated has another model, and is tested again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polyclinic.core.files import read_json, write_json
from polyclinic.evaluation.aggregate import Row, rows_from_csv, rows_to_csv

Score = Callable[[], tuple[list[Row], dict[str, Any]]]
"""Asks the sites: rows of cases, and plain facts about the test."""


class PartTest:
    """One test of a part: its rows, and plain facts about it."""

    def __init__(self, folder: Path, round_number: int | None = None) -> None:
        """``round_number`` counts from 1; ``None`` is the test at the end."""
        suffix = "" if round_number is None else f"-round-{round_number}"
        self.round_number = round_number
        self._cases = folder / f"cases{suffix}.csv"
        self._facts = folder / f"tested{suffix}.json"

    @property
    def done(self) -> bool:
        """Whether the test is written down, of whatever model."""
        return self._facts.exists()

    def done_after(self, returns: list[Any]) -> bool:
        """Whether it is written down, and was of the model that came of these returns."""
        return self.done and self.facts()["returns"] == [list(entry) for entry in returns]

    def make(self, score: Score, accept: Callable[[dict[str, Any]], None], **about: Any) -> None:
        """Score and write down, unless ``accept`` raises; ``about`` is added to the facts."""
        started = time.perf_counter()
        rows, facts = score()
        seconds = time.perf_counter() - started
        accept(facts)
        rows_to_csv(self._cases, rows)
        write_json(self._facts, {"seconds": seconds, **facts, **about})  # last: its presence says that all is there

    def rows(self) -> list[Row]:
        """One row a value."""
        return rows_from_csv(self._cases)

    def facts(self) -> dict[str, Any]:
        """The round of the tested model, seconds, bytes, sites that were not tested, and so on."""
        return dict(read_json(self._facts))


def round_tests(folder: Path) -> dict[int, PartTest]:
    """The tests after rounds that are written down, by round."""
    numbers = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("tested-round-*.json"))
    return {number: PartTest(folder, number) for number in numbers}
