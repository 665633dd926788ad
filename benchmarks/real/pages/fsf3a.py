"""FSF3A: losses and aggregators on volumes."""

from __future__ import annotations

from grids import Grid
from page import Page

_LOSSES = ("feddice", "fedinfonce", "fedsimclr", "fedfocaltversky", "fedlocalcl", "fedswav", "fsf3a")
_UNIFORM = "fsf3a(weighting=uniform)"
_AGGREGATORS = (_UNIFORM, f"{_UNIFORM}+proximal", f"{_UNIFORM}+scaffold", "fsf3a+fednova", "fsf3a+fedma", "fsf3a")
_REFERENCES = ("fedavg", "local", "central")

FSF3A = Page(
    "fsf3a",
    "FSF3A, its losses and aggregators on volumes",
    (
        "Two parts of the hippocampus in T1 volumes (`hippocampus3d`: 55, 80 and 33 patients of three intensity groups",
        "of one institution, split 60/20/20 by patient). Learning rate and rounds are the same for all methods, and",
        "every method has the defaults of its page in docs/reference/methods/. The model of the last round is tested.",
        "All tables are of one grid, so that a method that stands in two of them ran once.",
    ),
    (
        Grid(
            "hippocampus",
            "Anterior and posterior hippocampus in T1 volumes",
            "fsf3a_hippocampus",
            tuple(dict.fromkeys((*_REFERENCES, *_LOSSES, *_AGGREGATORS))),
            parts={
                "Table 1: losses, all under ASWA": _LOSSES,
                "Table 3: aggregators, all with CLSL": _AGGREGATORS,
                "Table 4: ASWA alone (Dice loss), CLSL alone (uniform mean), both": ("feddice", _UNIFORM, "fsf3a"),
                "References: FedAvg (the Dice loss alone), local models at home, all volumes in one place": _REFERENCES,
            },
            reference="feddice",
            differences=(
                *(("fsf3a", other) for other in _AGGREGATORS[:-1]),
                *(("fsf3a", other) for other in _LOSSES[1:-1]),
            ),
        ),
    ),
)
