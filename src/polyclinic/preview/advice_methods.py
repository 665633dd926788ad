"""Which methods to try on a federation, and what was measured of each on the federations most like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from polyclinic.data.federation_traits import FederationTraits
from polyclinic.methods.expression import parse_method
from polyclinic.preview.advice_settings import TRAINING_PAGE
from polyclinic.preview.evidence import REFERENCES, Evidence, MeasuredRow, MeasuredTable, distance

ALIKE = 1.5
"""Of ``distance``: with more, a measured federation is another kind."""
_MOST_FEDERATIONS = 3
_DICE_ALONE = {"volume_dice", "focal_tversky"}  # components whose loss has no slope where a patch has no foreground


@dataclass(frozen=True)
class Question:
    """What the model is for and what it may learn from."""

    unseen: bool
    """Whether it will be used at sites that take no part in training."""
    few: bool
    """Whether some images have no label."""
    hidden: bool
    """Whether a budget hides labels that are there, so that an upper bound may read them."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a method."""

    table: MeasuredTable
    row: MeasuredRow
    alike: bool
    """Whether it is of a federation like the one that asks."""
    differs: dict[str, Any]
    """Settings of the table that are not the advised ones."""
    apart: dict[str, Any]
    """Settings that the table which speaks for this federation has not: empty for that table itself."""

    @property
    def reference_dice(self) -> float | None:
        """Of the row that the difference is to."""
        reference = self.table.row(self.table.reference)
        return None if reference is None else reference.dice


@dataclass(frozen=True)
class MethodAdvice:
    """A method to try. ``measured`` is on the federations most like this one, the nearest first."""

    method: str
    reason: str
    measured: tuple[Measured, ...]
    cost: float | None
    """A round's time over FedAvg's in ``benchmarks/methods_cost.md``; None where it was not measured."""
    left_out: str = ""
    """Why it is not among the methods to compare; empty if it is."""

    @property
    def verdict(self) -> str:
        """What the nearest measurement says; ``not measured`` without any."""
        return (self.measured[0].row.verdict or "reference") if self.measured else "not measured"


class NearTables:
    """The tables that answer a question, those of the federations most like one first.

    Of the tables of one federation one speaks, so that its rows can be read together: it has the advised intensities if
    any has, and of those the longest training. Only a method that it lacks is taken from another.
    """

    def __init__(
        self, traits: FederationTraits, evidence: Evidence, question: Question, advised: dict[str, Any]
    ) -> None:
        self.traits, self.advised, self.costs = traits, advised, evidence.costs
        self.of_question = [table for table in evidence.tables if _answers(table, question)]
        found = [table for table in self.of_question if distance(traits, table.traits) < inf]
        self.tables = sorted(found, key=self._order)

    def _order(self, table: MeasuredTable) -> tuple[float, bool, int, int]:
        other = table.intensity != self.advised["data.intensity"]
        return distance(self.traits, table.traits), other, -table.rounds, -table.seeds

    @property
    def nearest(self) -> MeasuredTable | None:
        """The first one."""
        return self.tables[0] if self.tables else None

    def alike(self, table: MeasuredTable) -> bool:
        """Whether a table's federation is of the same kind."""
        return distance(self.traits, table.traits) <= ALIKE

    def measured(self, method: str) -> tuple[Measured, ...]:
        """A method's rows, one for each federation."""
        speaking: dict[str, MeasuredTable] = {}
        found: dict[str, Measured] = {}
        for table in self.tables:
            usual = speaking.setdefault(table.federation, table).settings
            row = table.row(method)
            if row is not None and table.federation not in found:
                differs = _other(table.settings, self.advised)
                found[table.federation] = Measured(
                    table, row, self.alike(table), differs, _other(table.settings, usual)
                )
        return tuple(found.values())[:_MOST_FEDERATIONS]

    def advice(self, method: str, reason: str, patches: bool) -> MethodAdvice:
        """Whether to try a method, with what is known of it."""
        measured = self.measured(method)
        left_out = ""
        if patches and any(part.component in _DICE_ALONE for part in parse_method(method).parts):
            left_out = f"not with patches: a loss of Dice alone needs nearly whole volumes ({TRAINING_PAGE})"
        elif measured and measured[0].alike and measured[0].row.verdict == "worse" and method not in REFERENCES:
            left_out = f"worse on {measured[0].table.federation}"
        return MethodAdvice(method, reason, measured, self.costs.get(method.split("(")[0]), left_out)


def _other(settings: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if usual.get(key) != value}


def _answers(table: MeasuredTable, question: Question) -> bool:
    """Whether a table is of the same question: full labels say nothing of few, nor own test images of unseen sites."""
    return (table.protocol == "leave-one-site-out") == question.unseen and (table.labelled is not None) == question.few


def methods_for(traits: FederationTraits, question: Question, near: NearTables, patches: bool) -> list[MethodAdvice]:
    """Methods with the reason to try each, the reference first; a method stands once."""
    wanted: dict[str, str] = {}
    for method, reason in _candidates(traits, question, near.tables[:1]):
        wanted.setdefault(method, reason)
    return [near.advice(method, reason, patches) for method, reason in wanted.items()]


def _candidates(
    traits: FederationTraits, question: Question, nearest: Sequence[MeasuredTable]
) -> Iterator[tuple[str, str]]:
    if question.few:
        yield "fl_lower", "the reference, FedAvg on the labelled images alone: what every other method has to beat"
        if question.hidden:
            yield "fl_upper", "a bound and no method: FedAvg with all labels, those that the others must not read, too"
    else:
        yield "fedavg", "the reference: what every other method has to beat"
    for table in nearest:
        gain = table.best_gain()
        if gain is not None:
            yield gain.method, f"the largest gain on {table.federation}, the measured federation most alike"
    if question.few:
        yield "fixmatch", "unlabelled images, by confident predictions on them"
        yield "fgasl", "unlabelled images and unseen sites, by two teachers"
        return
    if question.unseen:
        yield "fedavg(weighting=uniform)", "an unseen site may be like any of these, and each may count the same"
    if traits.largest_site >= 2 * traits.smallest_site:
        yield "fedavg(weighting=uniform)", "sites differ in size, and each may count the same"
    if not question.unseen and traits.sites > 1:
        yield "local", "each site trains alone, for itself: a federation is worth its trouble where it beats this"
    if traits.shift_word in ("clear", "strong"):
        if not question.unseen:
            yield "fedbn", "sites look different, and each keeps its own normalisation"
        yield "fedbcs", "sites look different: styles recalibrated, classes aligned by prototypes"
        yield "pathfl", "sites look different: styles exchanged, deep features aligned"
    if traits.dims == 3:
        yield "fsf3a", "volumes: Dice, edges and patches of deep features"
