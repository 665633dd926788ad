"""Few labels, tested at sites that took no part: FGASL's Tables 2 to 5 and its Figure 5 in small."""

from __future__ import annotations

from grids import Grid, Trial
from page import Page

from pages.shared import GLIOMA, SAME

# As published and as it is now, and the paper's baseline of Table 5; all named, so that no default moves a row.
_PUBLISHED, _OURS = "fgasl+dual_teacher(weight=1)", "fgasl+dual_teacher(weight=0.1)"
_BASELINE = "fixmatch(threshold=0.7,dice=true)"
_BOUNDS = ("fl_lower", "fl_upper", "local")
_FAMILY = ("fixmatch", "rscfed", "fedcd", "augseg", "dpl")
# Table 5 with the paper's weight: without DR, unlabelled images are learned from FixMatch.
_PARTS = (
    _BASELINE,
    f"{_BASELINE}+gaa",
    "fgasl-gaa-perturbation_invariance+dual_teacher(weight=1)",
    f"{_BASELINE}+perturbation_invariance",
    "fgasl-perturbation_invariance+dual_teacher(weight=1)",
    f"fgasl-dual_teacher+{_BASELINE}",
    "fgasl-gaa+dual_teacher(weight=1)",
    _PUBLISHED,
)
_MOST = (*_BOUNDS[:2], "fixmatch", _PUBLISHED, _OURS)
_PAIRS = ((_OURS, "fixmatch"), (_PUBLISHED, "fixmatch"), (_OURS, _PUBLISHED), *((row, _BASELINE) for row in _PARTS[1:]))
_FEW = {"training.batch_size": 2, "training.rounds": 20, "training.validate_every": 10}
_STEPS = {"training.steps_per_epoch": 40}
_UNSEEN = {"protocol.kind": "leave-one-site-out", "evaluation.training_images": False}
_SITES = {
    "cardiac_lv": ("The left ventricle in MR slices of three hospitals", {}),
    "brain_lgg": ("Glioma in MR slices of four hospitals", GLIOMA),
}
FEW_LABELS = Page(
    "few_labels",
    "Few labels, and sites that took no part: FGASL's tables in small",
    (
        *SAME,
        "Each site is left out once and tested with all of its images by the model of the others, of whom every one",
        "has so many labelled images, which a seed draws anew. `fl_lower` is FedAvg on the labelled images alone,",
        "`fl_upper` with all labels, `local` the mean over the other sites' own models.",
    ),
    (
        *(Trial(
            f"steps-{20 * steps}",
            f"How many steps: {20 * steps} at each site",
            "slices",
            rows,
            seeds=(100,),
            changes={**_FEW, "data.labelled": 6, "federation": "cardiac_lv", "training.steps_per_epoch": steps},
        ) for steps, rows in ((12, _BOUNDS[:2]), (40, _MOST))),
        *(Grid(
            f"{name}-{labelled}",
            f"{title}, {labelled} labelled images a site",
            "slices",
            rows,
            changes={**_FEW, **middle, **_STEPS, **_UNSEEN, "data.labelled": labelled, "federation": name},
            reference="fl_lower",
            differences=tuple(pair for pair in _PAIRS if set(pair) <= set(rows)),
        )
        for name, (title, middle) in _SITES.items()
        for labelled, rows in (
            (6, (*_MOST, *(row for row in (*_BOUNDS, *_FAMILY, *_PARTS) if row not in _MOST))),
            (3, _MOST), (12, _MOST),
        )),
    ),
    overall={
        title: {
            f"{words}, {labelled} labels": (f"{name}-{labelled}", method)
            for name, words in (("cardiac_lv", "left ventricle"), ("brain_lgg", "glioma"))
            for labelled in (3, 6, 12)
        }
        for title, method in (
            ("FedAvg on the labels alone, fl_lower", "fl_lower"), ("FixMatch", "fixmatch"),
            ("FGASL as published", _PUBLISHED), ("FGASL, weight 0.1", _OURS),
            ("FedAvg with all labels, fl_upper", "fl_upper"),
        )
    },
    overall_title="Figure 5: the label count",
)  # fmt: skip
