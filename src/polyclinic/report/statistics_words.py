"""What the statistics of a method show, in a line: ``fedbn against fedavg: +1.20 [0.31, 2.10], p = 0.004: better``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from polyclinic.core.wording import counted, printable_line
from polyclinic.evaluation.metric_registry import Better

if TYPE_CHECKING:
    from polyclinic.report.statistics import MethodStatistics

_FEWEST = 6  # cases that differ: the smallest p of five, all in one direction, is 0.0625
_MOST_NAMES = 3


def p_text(p: float) -> str:
    """A p-value for people.

    >>> p_text(0.2391), p_text(0.0314), p_text(0.04999), p_text(0.00002), p_text(1.0)
    ('p = 0.24', 'p = 0.031', 'p = 0.04999', 'p < 0.001', 'p = 1')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p_number(p)}"


def p_number(p: float) -> str:
    """The number alone; never one that looks like the other side of 0.05."""
    if p < 0.001:
        return "<0.001"
    digits = next((d for d in range(2, 17) if (float(f"{p:.{d}g}") < 0.05) == (p < 0.05)), 17)
    return f"{p:.{digits}g}"


def direction_word(direction: int, better: Better | None) -> Literal["better", "worse", "higher", "lower"]:
    """What a difference of this sign is called."""
    if better is None:
        return "higher" if direction > 0 else "lower"
    return "better" if (direction > 0) == (better == "higher") else "worse"


def sentence_of(
    one: MethodStatistics, reference: str, better: Better | None, scale: float, planned: tuple[int, ...]
) -> str:
    """The line of one method; ``planned`` are the seeds of the grid."""
    start = f"{printable_line(one.method)} against {printable_line(reference)}"
    if one.difference is None:
        return f"{start}: {_why_not_tested(one)}"
    numbers = f"{one.difference * scale:+.2f}"
    if one.interval is not None:
        numbers += f" [{one.interval.low * scale:.2f}, {one.interval.high * scale:.2f}]"
    if one.p_wilcoxon_holm is not None and one.verdict != "equal":
        numbers += f", {p_text(one.p_wilcoxon_holm)}"
    remarks = [_shown(one, better), *_remarks(one, planned)]
    return f"{start}: {numbers}: {'; '.join(remarks)}"


def note_of(methods: Iterable[MethodStatistics]) -> str:
    """What brackets and p-values of the lines are; empty where no line has any."""
    methods = list(methods)
    tested = [one for one in methods if one.p_wilcoxon is not None]
    if not tested:
        return ""
    over = "cases and seeds" if any(one.over_cases_and_seeds for one in tested) else "cases"
    averaged = ", each averaged over its seeds" if any(len(one.seeds) > 1 for one in tested) else ""
    holm = f", Holm-corrected for {counted(len(tested), 'method')}" if len(tested) > 1 else ""
    return (
        f"In brackets the 95 % bootstrap interval over {over}; p: Wilcoxon signed-rank test over "
        f"cases{averaged}{holm}. Better or worse: p < 0.05, and 0 outside of the brackets."
    )


def _shown(one: MethodStatistics, better: Better | None) -> str:
    seeds, cases = counted(len(one.seeds), "seed"), counted(one.cases, "case")
    if one.verdict == "not tested":
        return _why_not_tested(one)
    if one.verdict == "equal":
        return f"no difference in any of {cases}"
    if one.verdict != "not shown":
        return f"{one.verdict}, with {cases} and {seeds}"
    if one.direction:
        return f"{direction_word(one.direction, better)} on these {cases}, but not shown with 1 seed"
    if one.cases - one.zeros < _FEWEST:
        few = f", only {one.cases - one.zeros} of {cases} differ" if one.zeros else f" with only {cases}"
        return f"not shown{few}"
    if one.interval is None:
        return "not shown, no site has two cases"
    if one.over_cases_and_seeds is not None and _certain_over_cases(one):
        return f"not shown, the {seeds} differ too much"
    return f"not shown with {seeds}"


def _certain_over_cases(one: MethodStatistics) -> bool:
    """Whether these models differ, and only training them again leaves it open."""
    return replace(one, over_cases_and_seeds=None).direction != 0


def _why_not_tested(one: MethodStatistics) -> str:
    if not one.seeds:
        return "not tested, no seed is finished for both"
    if not one.cases:
        why = "only means left the sites" if one.only_means else "no case has a value for both"
        return f"not tested, {why}"
    if not one.linked:
        return "not tested, sites number their cases and every seed has other ones"
    return f"not tested with {counted(one.cases, 'case')}"


def _remarks(one: MethodStatistics, planned: tuple[int, ...]) -> list[str]:
    """What the numbers do not hold."""
    remarks = []
    if len(one.seeds) < len(planned):
        remarks.append(f"{len(one.seeds)} of {len(planned)} seeds are finished")
    if one.only_means and one.cases:
        names = [printable_line(site) for site in one.only_means[:_MOST_NAMES]]
        more = len(one.only_means) - len(names)
        remarks.append(f"without {', '.join([*names, *([f'{more} more'] if more else [])])}, of which only means left")
    if one.left_out:
        remarks.append(f"without {counted(one.left_out, 'value')} that only one of them has")
    return remarks
