"""Execution of a protocol: every part is trained and tested, then summarised; subclasses know where the sites are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_json
from polyclinic.evaluation.aggregate import Row, rows_to_csv
from polyclinic.evaluation.protocols import ProtocolPart
from polyclinic.federation.checkpoint import Checkpoint
from polyclinic.federation.observer import Observer
from polyclinic.federation.server import Server
from polyclinic.federation.workspace import Workspace
from polyclinic.runs.folder import RunFolder
from polyclinic.runs.longer_run import length_problem
from polyclinic.runs.part_scoring import score_part
from polyclinic.runs.part_tests import PartTest, round_tests
from polyclinic.runs.summary import summary_of
from polyclinic.runs.tested_scores import scores_table, told_apart


class Execution(ABC):
    """The loop over the parts of a protocol; parts that are tested are read from the run folder, not repeated."""

    def __init__(self, federation: str, folder: RunFolder, observer: Observer) -> None:
        self.federation_name, self.folder, self.observer = federation, folder, observer
        self._told: set[str] = set()

    @abstractmethod
    def open_server(self, workspace: Workspace, part: ProtocolPart) -> Server:
        """The server of a part, at the state of its checkpoint, with an engine that reaches the part's sites."""

    def train(self, server: Server, part: ProtocolPart) -> Server:
        """All rounds that are still to do; gives back the server that did the last one."""
        self.test_round(server, part)
        while not server.done:
            server.fit(stops=server.workspace.recipe.evaluation.rounds)
            self.test_round(server, part)
        return server

    def test_round(self, server: Server, part: ProtocolPart) -> None:
        """Score the test images if ``evaluation.rounds`` has the newest round.

        Called after each of them and before the first round that is still to do: a kill between the checkpoint of a
        round and its test loses nothing.
        """
        number, returns = server.state.round, server.state.returns
        test = PartTest(self.folder.part(part.name), number)
        if number not in server.workspace.recipe.evaluation.rounds or test.done_after(returns):
            return
        self.observer.on_message(f"testing after round {number}")
        self._test(test, server, part, select="last", returns=returns)

    def run_parts(
        self, workspace: Workspace, parts: Sequence[ProtocolPart], splits: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Train and test what is still to do, then write and return the summary.

        ``splits`` are hashes by part, for the summary.
        """
        self.warn(workspace.warnings())
        for part in parts:
            if not self._last_test(part).done:
                self._train_and_test(workspace, part)
            self._tidy(workspace, part)
        summary = self._summarise(workspace, parts, splits)
        write_json(self.folder.summary_file, summary)
        return summary

    def _summarise(
        self, workspace: Workspace, parts: Sequence[ProtocolPart], splits: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the rows of all parts, and make the summary of them."""
        repeated = workspace.recipe.protocol.kind == "repeated-splits"

        def table(tests: Mapping[str, PartTest], round_number: int | None = None) -> dict[str, Any]:
            rows = {name: test.rows() for name, test in tests.items()}
            rows = rows if repeated else told_apart(rows)
            self._write_cases(rows, round_number, with_parts=repeated)
            return scores_table(rows, {name: test.facts() for name, test in tests.items()}, repeated)

        last = {part.name: self._last_test(part) for part in parts}
        by_part = {part.name: round_tests(self.folder.part(part.name)) for part in parts}
        numbers = sorted({number for tests in by_part.values() for number in tests})
        at_rounds = {n: {name: tests[n] for name, tests in by_part.items() if n in tests} for n in numbers}
        return summary_of(
            self.federation_name, workspace, self.folder, dict(splits), table(last),
            {number: table(tests, number) for number, tests in at_rounds.items()},
            {name: test.facts() for name, test in last.items()},
            [test.facts() for tests in at_rounds.values() for test in tests.values()],
        )  # fmt: skip

    def _write_cases(self, rows: Mapping[str, list[Row]], round_number: int | None, with_parts: bool) -> None:
        every: list[Row] = [
            {**row, "part": name} if with_parts else row for name, part_rows in rows.items() for row in part_rows
        ]
        rows_to_csv(self.folder.cases_after(round_number), every)

    def _train_and_test(self, workspace: Workspace, part: ProtocolPart) -> None:
        server = self.open_server(workspace, part)
        try:
            self._train_and_test_with(server, workspace, part)
        finally:
            server.engine.close()

    def _train_and_test_with(self, server: Server, workspace: Workspace, part: ProtocolPart) -> None:
        self.observer.on_start(part.name, server.sites, workspace.recipe.training.rounds, server.state.round)
        server = self.train(server, part)
        self._test(self._last_test(part), server, part, workspace.recipe.training.select)

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

    def _test(self, test: PartTest, server: Server, part: ProtocolPart, select: str, **about: Any) -> None:
        test.make(
            lambda: score_part(server.workspace, server, part, select, transfers=test.round_number is None),
            lambda facts: self._check_tested(server, part, facts.get("untested", {})),
            **about,
        )

    def _check_tested(self, server: Server, part: ProtocolPart, untested: Mapping[str, str]) -> None:
        """Tell which sites were not tested, and why; a test without any is not written down, so it can be repeated."""
        if untested.keys() >= set([part.unseen] if part.unseen else part.train_sites):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in untested.items())
            raise PolyclinicError(f"No site could be tested ({reasons}); mend that and go on with --resume.")
        for site, reason in untested.items():
            self.observer.on_refusal(server.state.round - 1, site, f"is not tested: {reason}", "")

    def _last_test(self, part: ProtocolPart) -> PartTest:
        return PartTest(self.folder.part(part.name))

    def warn(self, warnings: Iterable[str]) -> None:
        """Tell each warning once, though several parts may give the same."""
        self.tell_once(f"warning: {warning}" for warning in warnings)

    def tell_once(self, lines: Iterable[str]) -> None:
        """Tell each line once, though several parts may give the same."""
        for line in lines:
            if line not in self._told:
                self._told.add(line)
                self.observer.on_message(line)
