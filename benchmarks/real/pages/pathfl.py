"""PathFL before and after its defaults changed."""

from __future__ import annotations

from grids import Grid, Search, Trial
from page import Page

from pages.shared import BOTH_MEANS, SAME

_PATHFL = {
    "nuclei_xmod": ("Nuclei in seven sets of four kinds", "pictures"),
    "retina_vessel": ("Vessels in retinal images of four centres", "pictures"),
    "cardiac_lv": ("The left ventricle in MR slices of three hospitals", "slices"),
}
_NAMES = {"nuclei_xmod": "nuclei", "retina_vessel": "vessels", "cardiac_lv": "left ventricle"}
# Every image, as eqs. 8 and 9 are written, and the share that the search chose; named, so that no default moves a row.
_ALL_IMAGES, _FEW_IMAGES = "pathfl+cse(probability=1)", "pathfl+cse(probability=0.25)"
_PATHFL_ROWS = {
    "nuclei_xmod-site": (*BOTH_MEANS, "fedbn", "pathfl-cse-afa", "pathfl-cse", _ALL_IMAGES, _FEW_IMAGES),
    "retina_vessel-site": (*BOTH_MEANS[:2], _FEW_IMAGES),
    "cardiac_lv-site": (*BOTH_MEANS[:2], _FEW_IMAGES),
}

# Tables that judge have five seeds and twice the rounds, after which FedAvg fits its training images as all images in
# one place do (the searches of rounds).
_TRAINED = {"training.rounds": 60, "training.validate_every": 30}
# Table 7: every subset of CSE, AFA and SSA, whose reference is the mean from which SSA starts.
_SUBSETS = (
    BOTH_MEANS[1],
    f"{BOTH_MEANS[1]}+cse(probability=0.25)",
    f"{BOTH_MEANS[1]}+afa",
    "pathfl-cse-afa",
    f"{BOTH_MEANS[1]}+cse(probability=0.25)+afa",
    "pathfl-afa+cse(probability=0.25)",
    "pathfl-cse",
    _FEW_IMAGES,
)
# Methods against differences of style that PathFL's tables name, with their published settings.
_STYLE = ("fedbn", "fedprox", "harmofl", "histofl", "fedfa", "fedheal")
_FAMILY = tuple(dict.fromkeys((*BOTH_MEANS, *_STYLE, *_SUBSETS, _ALL_IMAGES)))
_TABLES = {
    "References": BOTH_MEANS,
    "Tables 2 to 6: methods against differences of style": (BOTH_MEANS[1], *_STYLE, _ALL_IMAGES, _FEW_IMAGES),
    "Table 7: which of CSE, AFA and SSA gains": _SUBSETS,
}

PATHFL = Page(
    "pathfl",
    "PathFL before and after: intensities of the image or of the site",
    (
        *SAME,
        "Before, recipes of PathFL had intensities from 0 to 1; now each site has its own mean and deviation.",
        "Differences are to the uniform mean, from which SSA starts.",
    ),
    (
        Search(
            "search",
            "Which settings: searched on nuclei",
            "pictures",
            (
                _ALL_IMAGES, "pathfl+cse(exclude_self=false,probability=1)", "pathfl+cse(probability=0.5)",
                _FEW_IMAGES, "pathfl+cse(statistics=channel,probability=1)",
                "pathfl+cse(statistics=channel,probability=0.25)",
            ),
            changes={"federation": "nuclei_xmod", "data.intensity": "site", "evaluation.training_images": False},
        ),
        *(Trial(
            f"rounds-{rounds}",
            f"How many rounds: {rounds} on nuclei at full range",
            "pictures",
            (BOTH_MEANS[1], "central"),
            seeds=(100,),
            changes={"federation": "nuclei_xmod", "data.intensity": "full-range", "training.rounds": rounds},
        ) for rounds in (30, 60)),
        *(Grid(
            f"{name}-{intensity}",
            f"{title}, `data.intensity = {intensity}`",
            recipe,
            _PATHFL_ROWS.get(f"{name}-{intensity}", (BOTH_MEANS[1], _ALL_IMAGES, _FEW_IMAGES)),
            changes={"federation": name, "data.intensity": intensity},
            reference=BOTH_MEANS[1],
            differences=((_FEW_IMAGES, _ALL_IMAGES), (_ALL_IMAGES, "pathfl-cse"), (_FEW_IMAGES, "pathfl-cse")),
        )
        for name, (title, recipe) in _PATHFL.items()
        for intensity in ("site", "full-range")),
        Grid(
            "nuclei_xmod-zero-one",
            "Nuclei, `data.intensity = zero-one`, each image from 0 to 1",
            "pictures",
            (BOTH_MEANS[1],),
            changes={"federation": "nuclei_xmod", "data.intensity": "zero-one"},
            advises=False,
        ),
        *(Grid(
            f"nuclei_xmod-{intensity}-trained",
            f"Nuclei, trained out, `data.intensity = {intensity}`",
            "pictures",
            _FAMILY,
            seeds=(0, 1, 2, 3, 4),
            changes={"federation": "nuclei_xmod", "data.intensity": intensity, **_TRAINED},
            parts=_TABLES,
            reference=BOTH_MEANS[1],
            differences=(("pathfl-cse", "pathfl-cse-afa"), (_FEW_IMAGES, "pathfl-cse"), (_ALL_IMAGES, "pathfl-cse")),
        ) for intensity in ("full-range", "site")),
        # The norm of FedSODA, the authors' released code of the work before.
        Grid(
            "nuclei_xmod-group",
            "Nuclei, `data.intensity = site`, a network of group norms",
            "pictures",
            (*BOTH_MEANS[:2], _ALL_IMAGES, _FEW_IMAGES),
            changes={"federation": "nuclei_xmod", "data.intensity": "site", "network.norm": "group"},
            reference=BOTH_MEANS[1],
            advises=False,
        ),
    ),
    overall={
        title: {words: (f"{name}-{intensity}", method) for name, words in _NAMES.items()}
        for title, intensity, method in (
            ("before: FedAvg uniform, full range", "full-range", BOTH_MEANS[1]),
            ("before: PathFL, full range, CSE on every image", "full-range", _ALL_IMAGES),
            ("PathFL, full range, CSE on a quarter", "full-range", _FEW_IMAGES),
            ("after: FedAvg by samples, intensities of the site", "site", "fedavg"),
            ("after: FedAvg uniform, intensities of the site", "site", BOTH_MEANS[1]),
            ("PathFL, intensities of the site, CSE on every image", "site", _ALL_IMAGES),
            ("after: PathFL, intensities of the site, CSE on a quarter", "site", _FEW_IMAGES),
        )
    },
)  # fmt: skip
