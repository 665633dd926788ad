"""FedBCS before and after its defaults changed, and the methods that its tables name."""

from __future__ import annotations

from grids import Grid, Search, Trial
from page import Page

from pages.shared import BOTH_MEANS, GLIOMA, PROSTATE, SAME

# As released, with foreground alone as anchors; as the paper's eqs. 15 and 16, all classes; with a smaller weight. All
# settings that matter are named, so that no default moves a row.
_FOREGROUND, _ALL, _LESS = "fedbcs(anchors=foreground,weight=1)", "fedbcs(weight=1)", "fedbcs(weight=0.1)"
_FEDBCS = (*BOTH_MEANS[:2], _FOREGROUND, _ALL, _LESS)
_FSR_ALONE, _CDPA_ALONE = "fedbcs-cdpa", "fedbcs(weight=0.1)-fsr"
# Table 1, but for FPL, which is among the options below: methods on prototypes, and against differences of style.
_FAMILY = ("moon", "fedproto", "harmofl", "fedcontrast", "fedplvm")
# Options of kin for rare classes and for labels of coarse cells, beside what is published.
_OPTIONS = ("feduv", "feduv(target=shares)", "fpl(cells=nearest)", "fpl(cells=share)")
_BEFORE_AFTER = (*BOTH_MEANS[:2], _FOREGROUND, _LESS)
# Against the other mean, what CDPA adds to FSR, and the anchors of the code against those of the equations.
_PAIRS = (
    (_LESS, BOTH_MEANS[1]),
    (_FSR_ALONE, BOTH_MEANS[1]),
    (_LESS, _FSR_ALONE),
    *((_LESS, other) for other in ("harmofl", "fpl(cells=nearest)", "fedplvm")),
    (_ALL, _FSR_ALONE),
    (_FOREGROUND, _ALL),
    (_FOREGROUND, _LESS),
    _OPTIONS[1::-1],
    _OPTIONS[:1:-1],
)
FEDBCS = Page(
    "fedbcs",
    "FedBCS before and after: which pixels are anchors of CDPA; and the prototype family",
    (*SAME, f"`{_FOREGROUND}` was the default before, as in the released code."),
    (
        Search(
            "search",
            "Which settings: searched on vessels",
            "pictures",
            (
                "fedbcs(weight=1)", "fedbcs(weight=0.3)", "fedbcs(weight=0.1)", "fedbcs(weight=0.03)",
                "fedbcs(tau=0.1,weight=0.1)", "fedbcs(tau=0.005,weight=0.1)",
            ),
            changes={"federation": "retina_vessel", "evaluation.training_images": False},
        ),
        Trial(
            "rounds-60",
            "How many rounds: 60 on vessels",
            "pictures",
            (BOTH_MEANS[1], "central"),
            seeds=(100,),
            changes={"federation": "retina_vessel", "training.rounds": 60},
        ),
        *(Grid(
            name, title, recipe, rows, changes={"federation": name.removesuffix("-batch"), **changes},
            # Where a gain is to be shown or not.
            seeds=(0, 1, 2, 3, 4) if name.endswith("-batch") else (0, 1, 2),
            advises="network.norm" not in changes,
            differences=tuple(pair for pair in _PAIRS if set(pair) <= set(rows)),
        )
        for name, title, recipe, rows, changes in (
            ("retina_vessel", "Vessels in retinal images of four centres", "pictures",
             (*BOTH_MEANS, "fedbn", *_FEDBCS[2:], _FSR_ALONE, _CDPA_ALONE, *_OPTIONS, *_FAMILY), {}),
            # FSR blends a map with its instance norm: in a network of instance norms there is nothing left to blend.
            ("retina_vessel-batch", "Vessels, a network of batch norms", "pictures",
             (*_FEDBCS, _FSR_ALONE), {"network.norm": "batch"}),
            ("cardiac_lv", "The left ventricle in MR slices of three hospitals", "slices",
             (*_BEFORE_AFTER, *_OPTIONS), {}),
            ("nuclei_xmod", "Nuclei in seven sets of four kinds", "pictures",
             ("fedavg", _LESS, *_OPTIONS), {"data.intensity": "full-range"}),
            ("brain_lgg", "Glioma in MR slices of four hospitals", "slices",
             (*_BEFORE_AFTER, *BOTH_MEANS[2:], _FSR_ALONE, _CDPA_ALONE, "fpl(cells=nearest)", *_FAMILY), GLIOMA),
            ("prostate_slices", "Two zones of the prostate in slices of four protocols", "slices",
             (*BOTH_MEANS, _FOREGROUND, _LESS, _FSR_ALONE, _CDPA_ALONE, "fpl(cells=nearest)", *_FAMILY), PROSTATE),
            ("cardiac_lv-batch", "The left ventricle, a network of batch norms", "slices",
             (*_BEFORE_AFTER, _FSR_ALONE), {"network.norm": "batch"}),
            ("brain_lgg-batch", "Glioma, a network of batch norms", "slices",
             (*_BEFORE_AFTER, _FSR_ALONE), {**GLIOMA, "network.norm": "batch"}),
        )),
    ),
    overall={
        title: {
            f"{words}{norm}": (f"{name}{suffix}", method)
            for suffix, norm in (("", ""), ("-batch", ", batch norm"))
            for name, words in (
                ("retina_vessel", "vessels"), ("cardiac_lv", "left ventricle"), ("brain_lgg", "glioma"),
                ("nuclei_xmod", "nuclei"),
            )
            if (name, suffix) != ("nuclei_xmod", "-batch")
        }
        for title, method in {
            "FedAvg, by samples": "fedavg", "FedAvg, uniform": BOTH_MEANS[1],
            "before: anchors of the foreground": _FOREGROUND, "all classes as anchors": _ALL,
            "all classes, weight 0.1": _LESS, "FSR alone": _FSR_ALONE,
        }.items()
    },
)  # fmt: skip
