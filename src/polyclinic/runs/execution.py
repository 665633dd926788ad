"""Execution of a protocol: every part is trained and tested, then summarised; subclasses know where the sites are."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_json, write_json
from polyclinic.evaluation.aggregate import Row, rows_from_csv, rows_to_csv
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.federation.checkpoint import Checkpoint
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.longer_run import length_problem
from polyclinic.runs.part_scoring import score_part
from polyclinic.runs.summary import summary_of


class Execution(ABC):
    """The loop over the parts of a protocol; parts that are tested are read from the run folder, not repeated."""

    def __init__(self, federation: str, folder: RunFolder, observer: Observer) -> None:
        self.federation_name, self.folder, self.observer = federation, folder, observer
        self._told: set[str] = set()

    @abstractmethod
    def open_server(self, workspace: Workspace, part: ProtocolPart) -> Server:
        """The server of a part, at the state of its checkpoint, with an engine that reaches the part's sites."""

    def train(self, server: Server, part: ProtocolPart) -> Server:  # noqa: ARG002
        """All rounds that are still to do; gives back the server that did the last one."""
        server.fit()
        return server

    def run_parts(
        self, workspace: Workspace, parts: Sequence[ProtocolPart], splits: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Train and test what is still to do, then write and return the summary.

        ``splits`` are hashes by part, for the summary.
        """
        self.warn(workspace.warnings())
        for part in parts:
            if not self.folder.tested_file(part.name).exists():
                self._train_and_test(workspace, part)
            self._tidy(workspace, part)
        rows: list[Row] = [row for part in parts for row in rows_from_csv(self.folder.part_cases_file(part.name))]
        rows_to_csv(self.folder.cases_file, rows)
        tested = {part.name: read_json(self.folder.tested_file(part.name)) for part in parts}
        summary = summary_of(self.federation_name, workspace, self.folder, dict(splits), rows, tested)
        write_json(self.folder.summary_file, summary)
        return summary

    def _train_and_test(self, workspace: Workspace, part: ProtocolPart) -> None:
        server = self.open_server(workspace, part)
        try:
            self._train_and_test_with(server, workspace, part)
        finally:
            server.engine.close()

    def _train_and_test_with(self, server: Server, workspace: Workspace, part: ProtocolPart) -> None:
        self.observer.on_start(part.name, server.sites, workspace.recipe.training.rounds, server.state.round)
        server = self.train(server, part)
        started = time.perf_counter()
        rows, facts = score_part(workspace, server, part)
        seconds = time.perf_counter() - started
        self._check_tested(server, part, facts.get("untested", {}))
        rows_to_csv(self.folder.part_cases_file(part.name), rows)
        # Comes last: its presence says that the part is done.
        write_json(self.folder.tested_file(part.name), {"seconds": seconds, **facts})

    def _tidy(self, workspace: Workspace, part: ProtocolPart) -> None:
        """Keep of a tested part what predictions and reports need, and what a longer run could start from."""
        checkpoint = Checkpoint(self.folder.part(part.name))
        state = checkpoint.load()
        if state is not None:  # else somebody has removed it
            trains_on = not state.stopped and length_problem(workspace, state) is None
            checkpoint.finish(trains_on)
            self.tidy_sites(part, state.round, trains_on)

    def tidy_sites(self, part: ProtocolPart, done: int, trains_on: bool) -> None:  # noqa: B027
        """The same for the memory of the part's sites, after ``done`` rounds; that of sites elsewhere is theirs."""

    def _check_tested(self, server: Server, part: ProtocolPart, untested: Mapping[str, str]) -> None:
        """Tell which sites were not tested, and why; a test without any is not written down, so it can be repeated."""
        if untested.keys() >= set([part.unseen] if part.unseen else part.train_sites):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in untested.items())
            raise PolyclinicError(f"No site could be tested ({reasons}); mend that and go on with --resume.")
        for site, reason in untested.items():
            self.observer.on_refusal(server.state.round - 1, site, f"is not tested: {reason}", "")

    def warn(self, warnings: Iterable[str]) -> None:
        """Tell each warning once, though several parts may give the same."""
        self.tell_once(f"warning: {warning}" for warning in warnings)

    def tell_once(self, lines: Iterable[str]) -> None:
        """Tell each line once, though several parts may give the same."""
        for line in lines:
            if line not in self._told:
                self._told.add(line)
                self.observer.on_message(line)
