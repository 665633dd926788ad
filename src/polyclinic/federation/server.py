"""The server: the loop of rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import ceil, isnan
from pathlib import Path
from typing import Any

import torch

from polyclinic.components.base import Component
from polyclinic.components.rounds import ServerRound
from polyclinic.core.background_writer import BackgroundWriter
from polyclinic.core.seeds import generator_for
from polyclinic.core.wording import printable_line
from polyclinic.exchange.checks import update_problem
from polyclinic.exchange.messages import Broadcast, Failure, Tensors, Update, tensor_bytes
from polyclinic.federation.best_round import note_scores
from polyclinic.federation.checkpoint import Checkpoint, ServerState
from polyclinic.federation.culprit import aggregated, combined
from polyclinic.federation.engine import Engine
from polyclinic.federation.observer import Observer
from polyclinic.federation.recovery import (
    MOST_RETURNS,
    NoCulpritError,
    NoQuorumError,
    SpoiltRoundError,
    aggregate_problem,
    left_out,
    says_diverged,
    suspect,
    training_collapsed,
)
from polyclinic.federation.round_record import RoundRecord
from polyclinic.federation.shared_bounds import shared_deviations, shared_outliers
from polyclinic.federation.stuck import note_findings, stuck_rounds, stuck_sites
from polyclinic.federation.update_bounds import UpdateBounds
from polyclinic.federation.workspace import Workspace

UpdateCheck = Callable[[Update], str | None]


class Server:
    """Broadcast, collect, check, aggregate, combine, validate, record, checkpoint."""

    def __init__(
        self, workspace: Workspace, engine: Engine, sites: list[str], folder: Path, observer: Observer,
        own_check: UpdateCheck = lambda _: None,
    ) -> None:  # fmt: skip
        """``own_check`` is what only the caller can know of an update: why it must be refused, or ``None``."""
        self.workspace, self.engine, self.observer, self.own_check = workspace, engine, observer, own_check
        self.settings = workspace.recipe.training
        self.sites = tuple(sorted(sites))
        self.declared = workspace.declared()
        self.checkpoint, self._writer = Checkpoint(folder), BackgroundWriter()
        self._start_from(self.checkpoint.load() or self._first_state())

    def _first_state(self) -> ServerState:
        return ServerState(weights=dict(self.workspace.initial_exchanged))

    def _start_from(self, state: ServerState) -> None:
        """Go on from a state; whatever an attempt left in the components is gone."""
        self.state = state
        self.components = self.workspace.fresh_components(state.components)
        self.aggregator = next(component for component in self.components if component.aggregates)
        self.screening = [c for c in self.components if type(c).screen is not Component.screen]

    def fit(self, stops: Collection[int] = ()) -> None:
        """All rounds that are still to do, or until so many are done in all as one of ``stops`` says.

        The checkpoint of a round is written while sites train in the next.
        """
        with self._written():
            while not self.done:
                self._repeat_until_good()
                if self.state.round in stops:
                    return

    @property
    def done(self) -> bool:
        """Whether no round is left."""
        return self.state.round >= self.settings.rounds or self.state.stopped

    @property
    def quorum(self) -> int:
        """The number of good updates that the next round needs."""
        return count_of(self.settings.quorum, len(self.choose(self.state.round)))

    def round(self) -> None:
        """One round; its checkpoint is on disk at the end, so that no site is ever ahead of it by more than a round."""
        with self._written():
            self._repeat_until_good()

    @contextmanager
    def _written(self) -> Iterator[None]:
        """A block after which nothing waits to be written, however it ends."""
        try:
            yield
            self._writer.close()
        except BaseException:
            for end in (self.engine.close, self._writer.close):
                with suppress(Exception):  # what ended the block is what the caller must hear of
                    end()
            raise

    def _repeat_until_good(self) -> None:
        """One round; one that a site spoilt is taken back and repeated without the site."""
        while True:
            try:
                return self._attempt()
            except SpoiltRoundError as spoilt:
                self._take_back(spoilt)

    def _attempt(self) -> None:
        """One round, as in the papers' algorithm boxes."""
        started, number, record = time.perf_counter(), self.state.round, RoundRecord()
        chosen = self.choose(number)
        for site, reason in left_out(self.state.returns, number).items():
            if site in chosen:
                self._refuse(site, reason, record)
        asked = [site for site in chosen if site not in record.refused]
        broadcast = Broadcast(number, self.state.weights, self.state.shared, self.state.best_round)
        server = self._server_round(number, record)
        bounds = UpdateBounds(
            self.settings.max_update_ratio, number, self.state.weights, server.buffers, self.state.norms
        )
        updates = self._accepted(broadcast, asked, record, bounds)
        server.weights = self._aggregate(server, updates, chosen, record, bounds)
        shared = self._combine(server, record)
        weights = {name: server.weights[name] for name in self.state.weights}
        self.state.weights, self.state.shared, self.state.norms = weights, shared, bounds.history
        self.state.round += 1
        trained = time.perf_counter()
        scores, complete = self._validate(number, record) if self._validates(number) else ({}, False)
        quorum = count_of(self.settings.quorum, len(self.sites))
        new_best = note_scores(self.state, number, scores, complete, quorum, self.settings.patience)
        self.state.components = {c.name: dict(c.state) for c in self.components if c.state}
        seconds = {"training": trained - started, "validation": time.perf_counter() - trained, "sites": record.seconds}
        self.engine.settle()
        self.observer.on_round(self._event(number, chosen, broadcast, record, scores, seconds))
        self._writer.submit(partial(self.checkpoint.save, replace(self.state), new_best, self.unseen_weights(server)))

    def _take_back(self, spoilt: SpoiltRoundError) -> None:
        """Go on from before a round, without the site that spoilt it; a run does this a few times at most."""
        self._writer.wait()
        newest = self.checkpoint.load()
        returns = [*self.state.returns, (spoilt.number, spoilt.site, spoilt.reason)]
        if len(returns) > MOST_RETURNS:
            raise spoilt
        if newest is not None and newest.round > spoilt.number:
            newest = self.checkpoint.take_back(self._first_state(), returns)
        self._start_from(newest or self._first_state())
        self.state.returns = returns
        self.observer.on_message(
            f"round {spoilt.number + 1} is repeated without {spoilt.site}, whose update {spoilt.why}: {spoilt.reason}"
        )
        self.observer.on_rollback(self.state.round)

    def choose(self, number: int) -> list[str]:
        """The sites of a round: all, or a seeded draw that depends on the round alone."""
        count = count_of(self.settings.participation, len(self.sites))
        if count >= len(self.sites):
            return list(self.sites)
        order = torch.randperm(
            len(self.sites), generator=generator_for(self.workspace.recipe.seed, "participation", number)
        )
        return sorted(self.sites[i] for i in order[:count].tolist())

    def unseen_weights(self, server: ServerRound) -> Tensors:
        """Values of kept weights for sites that never took part, from all components."""
        weights: Tensors = {}
        for component in self.components:
            weights |= component.unseen_weights(server)
        return weights

    def _server_round(self, number: int, record: RoundRecord) -> ServerRound:
        return ServerRound(
            number, self.settings.rounds, self.workspace.network, self.state.weights, self.sites,
            frozenset(self.workspace.network.buffer_names()), self.workspace.recipe.policies.buffers,
            generator_for(self.workspace.recipe.seed, "server", number), self.workspace.device,
            samples=record.samples, warn=record.warnings.append, notes=record.notes,
        )  # fmt: skip

    def _accepted(
        self, broadcast: Broadcast, asked: list[str], record: RoundRecord, bounds: UpdateBounds
    ) -> Iterator[Update]:
        """Updates that passed the checks, one at a time and in the order of the sites.

        The checkpoint of the round before is on disk by then: components may change what it holds in place.
        """
        for answer in self.engine.train(broadcast, asked):
            self._writer.wait()
            if isinstance(answer, Failure):
                refused = answer.reason.startswith("refused:")
                reason = answer.reason if refused else f"failed: {answer.reason}"
                self._refuse(answer.site, reason, record, answer.details)
                continue
            problem = update_problem(answer, broadcast.weights, self.declared, broadcast.round)
            problem = problem or self.own_check(answer) or bounds.accept(answer)
            if problem is not None:
                self._refuse(answer.site, printable_line(f"update refused: {problem}"), record)
                continue
            record.add(answer, self.declared)
            self.observer.on_site(broadcast.round, answer.site)
            yield answer

    def _aggregate(
        self, server: ServerRound, updates: Iterable[Update], chosen: list[str], record: RoundRecord,
        bounds: UpdateBounds,
    ) -> Tensors:  # fmt: skip
        """The new global weights; updates are collected only where a component needs all of them at once."""
        if self.screening or not self.aggregator.streams:
            updates = self._without_outliers(list(updates), record, bounds)
            bounds.note_shared(shared_deviations(record.shared, self.declared))
            self._require_training(chosen, record)
            self._require_quorum(chosen, record)  # here already: such a component may count on having an update
            for component in self.screening:
                updates = component.screen(server, updates)
            return aggregated(self.aggregator, server, updates, self.state.weights, self.declared)
        weights = self.aggregator.aggregate(server, updates)
        for site, problem in self._outliers(record, bounds).items():  # seen only now, when the sum holds it already
            raise SpoiltRoundError(server.round, site, problem)
        bounds.note_shared(shared_deviations(record.shared, self.declared))
        self._require_training(chosen, record)
        self._require_quorum(chosen, record)
        self._require_usable(server, weights, bounds)
        return weights

    def _outliers(self, record: RoundRecord, bounds: UpdateBounds) -> dict[str, str]:
        """Accepted updates that those after them show to be too large, by site, in weights or in what they share."""
        if bounds.ratio == "off":
            return {}
        return {**shared_outliers(record.shared, self.declared), **bounds.outliers()}

    def _require_usable(self, server: ServerRound, weights: Tensors, bounds: UpdateBounds) -> None:
        """A sum that is no number is one site's fault only where the update of one stands out."""
        problem = aggregate_problem({name: weights[name] for name in self.state.weights}, {}, self.declared)
        if problem is None:
            return
        site = suspect(bounds.history, server.round)
        if site is None:
            raise NoCulpritError(server.round, problem)
        raise SpoiltRoundError(server.round, site, problem)

    def _without_outliers(self, updates: list[Update], record: RoundRecord, bounds: UpdateBounds) -> list[Update]:
        """Refuse accepted updates that those after them show to be too large."""
        outliers = self._outliers(record, bounds)
        for site, problem in outliers.items():
            bounds.forget(site)
            record.drop(site)
            self._refuse(site, printable_line(f"update refused: {problem}"), record)
        return [update for update in updates if update.site not in outliers]

    def _require_training(self, chosen: list[str], record: RoundRecord) -> None:
        """Where most sites diverge and an update of the round before stands out, it is that round which was bad."""
        before = self.state.round - 1
        if training_collapsed(chosen, record.refused, record.losses.values()) and self.checkpoint.can_take_back(before):
            site = suspect(self.state.norms, before)
            if site is not None:
                raise SpoiltRoundError(before, site, "most sites could not train on the model that came of its update")

    def _refuse(self, site: str, reason: str, record: RoundRecord, details: str = "") -> None:
        record.refused[site] = reason
        self.observer.on_refusal(self.state.round, site, reason, details)

    def _require_quorum(self, chosen: list[str], record: RoundRecord) -> None:
        wanted = count_of(self.settings.quorum, len(chosen))
        if len(record.samples) < wanted:
            raise NoQuorumError(
                f"Round {self.state.round + 1} got {len(record.samples)} good updates of {len(chosen)} sites, "
                f"training.quorum asks for {wanted} ({record.reasons()}); mend the sites and go on with --resume."
            )

    def _combine(self, server: ServerRound, record: RoundRecord) -> dict[str, Tensors]:
        made = {c.name: combined(c, server, record.shared.get(c.name, {}), self.declared) for c in self.components}
        return {name: tensors for name, tensors in made.items() if tensors}

    def _validates(self, number: int) -> bool:
        last = number == self.settings.rounds - 1
        return last or (number + 1) % self.settings.validate_every == 0

    def _validate(self, number: int, record: RoundRecord) -> tuple[dict[str, float], bool]:
        """Mean Dice of each site's validation images, for the sites that have some, and whether no site failed."""
        broadcast = Broadcast(number, self.state.weights)
        scores: dict[str, float] = {}
        complete, undefined, background_only = True, 0, set[str]()
        for answer in self.engine.evaluate(broadcast, self.sites, "val", detailed=False):
            if isinstance(answer, Failure):
                self.observer.on_refusal(number, answer.site, f"validation failed: {answer.reason}", answer.details)
                complete = False
                undefined += says_diverged(answer.reason)
            elif answer.images and not isnan(answer.dice):
                scores[answer.site] = answer.dice
                background_only |= {answer.site} if answer.background_only else set()
            else:
                undefined += answer.images > 0
        site = suspect(self.state.norms, number)
        if undefined and not scores and site is not None and (self.state.best_scores or not number):
            raise SpoiltRoundError(number, site, "no site got finite outputs from the model that came of its update")
        if scores:
            record.warnings += note_findings(self.state, scores, background_only, self.workspace)
        return scores, complete

    def _bytes_down(self, number: int, chosen: list[str], broadcast: Broadcast) -> dict[str, int]:
        """The broadcast to the sites that train, and the new weights to all sites when they validate."""
        down = {site: broadcast.bytes if site in chosen else 0 for site in self.sites}
        if self._validates(number):
            down = {site: count + tensor_bytes(self.state.weights) for site, count in down.items()}
        return {site: count for site, count in down.items() if count}

    def _event(
        self, number: int, chosen: list[str], broadcast: Broadcast, record: RoundRecord, scores: dict[str, float],
        seconds: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """One line of ``events.jsonl``."""
        crosses = not self.workspace.method.pooled
        mean_dice = sum(scores.values()) / len(scores) if scores else None
        return {
            "round": number,
            "sites": chosen,
            "refused": record.refused,
            "samples": record.samples,
            "steps": record.steps,
            "losses": record.plain_losses(),
            "validation": {"dice": mean_dice, "sites": scores},
            "best_round": self.state.best_round,
            "stuck": stuck_rounds(self.state, self.settings.stuck_after),
            "stuck_sites": stuck_sites(self.state, self.settings.stuck_after),
            "bytes_up": record.bytes_up if crosses else {},
            "bytes_down": self._bytes_down(number, chosen, broadcast) if crosses else {},
            "shared_up": record.shared_up if crosses else {},
            "notes": record.notes,
            "seconds": seconds,
            "warnings": record.warnings,
        }


def count_of(wanted: float, of: int) -> int:
    """A share (up to 1) or a count (above 1) as a count between 1 and all."""
    return max(1, min(of, ceil(wanted * of - 1e-9) if wanted <= 1 else int(wanted)))
