"""Which settings and methods to start from, for a federation that was checked: reasons, and the numbers behind them.

Settings follow from the images (``advice_settings.py``); methods from what was measured on the federations most like
this one (``advice_methods.py``). Where nothing was measured, the advice says so: it never repeats a paper's promise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from polyclinic.core.wording import counted
from polyclinic.data.federation_traits import FederationTraits
from polyclinic.preview.advice_methods import Measured, MethodAdvice, NearTables, Question, methods_for
from polyclinic.preview.advice_settings import Setting, settings_for
from polyclinic.preview.evidence import Evidence, MeasuredTable, settings_of
from polyclinic.recipe.files import make_recipe

_FEW_CASES = 10


@dataclass(frozen=True)
class Advice:
    """What to start from."""

    traits: FederationTraits
    settings: tuple[Setting, ...]
    methods: tuple[MethodAdvice, ...]
    nearest: MeasuredTable | None
    """The measured federation that is most like this one."""
    alike: bool
    """Whether it is like this one at all."""
    basis: str
    """Which federation the numbers are of, or that there are none, in a sentence."""
    ceiling: tuple[Measured, ...]
    """``central``, for orientation: no method to choose, because images leave the sites."""
    notes: tuple[str, ...]
    unseen: bool
    labelled: int | None

    @property
    def compared(self) -> tuple[str, ...]:
        """The methods to compare: the reference first, without those that are left out."""
        return tuple(one.method for one in self.methods if not one.left_out)


def advise(traits: FederationTraits, evidence: Evidence, unseen: bool = False, labelled: int | None = None) -> Advice:
    """Advice for a federation; ``unseen``: the model will be used at sites that take no part in training.

    ``labelled`` is how many images of a site will have labels; without it all that have one now.
    """
    question = Question(unseen, labelled is not None or traits.labelled < 1, labelled is not None)
    settings = settings_for(traits, question.few)
    near = NearTables(traits, evidence, question, _advised(settings))
    methods = methods_for(traits, question, near, patches=any(one.key == "data.patch" for one in settings))
    bounded = question.few or unseen
    return Advice(
        traits,
        settings,
        tuple(methods),
        near.nearest,
        near.nearest is not None and near.alike(near.nearest),
        _basis(near, question),
        () if bounded else near.measured("central"),
        tuple(_notes(traits, question, methods)),
        unseen,
        labelled,
    )


def _advised(settings: Iterable[Setting]) -> dict[str, object]:
    """What the advised recipe has for the settings that tables are told apart by."""
    advised: dict[str, object] = settings_of(make_recipe({"federation": "any"}))
    return {**advised, **{one.key: json.loads(one.value) for one in settings if one.key in advised}}


def _basis(near: NearTables, question: Question) -> str:
    """Which federation the numbers below are of."""
    if question.unseen and not near.of_question:
        return "No table has tested sites that take no part yet"
    what = " with few labels" if question.few else " at sites that take no part" if question.unseen else ""
    if near.nearest is None:
        return f"No table is of a federation of this kind{what} yet"
    if not near.alike(near.nearest):
        return f"No federation like this one was measured{what}; the nearest is {near.nearest.federation}"
    return f"The measured federation most like this one is {near.nearest.federation}"


def _notes(traits: FederationTraits, question: Question, methods: Iterable[MethodAdvice]) -> Iterator[str]:
    """What to know before trusting a comparison on this federation."""
    if traits.sites == 1:
        yield "one site is no federation: every method is FedAvg, which is training at that site"
    if traits.sites == 2 and question.few:
        yield "with two sites FGASL's weights only say which of the two has the larger gap"
    if traits.sites == 2 and any(one.method == "pathfl" for one in methods):
        yield "with two sites SSA, PathFL's aggregation, is the plain mean"
    if traits.smallest_site < _FEW_CASES and not question.unseen:  # a site that is left out is tested whole
        yield (
            f"the smallest site has {counted(traits.smallest_site, 'image')}, of which a fifth is tested: intervals "
            "will be wide; protocol.kind = 'k-fold' tests them all"
        )
