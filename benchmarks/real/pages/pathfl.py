"""PathFL before and after its defaults changed."""

from __future__ import annotations

from page import Grid, Page, Search

from pages.shared import BOTH_MEANS, SAME

_PATHFL = {
    "nuclei_xmod": ("Nuclei in seven sets of four kinds", "pictures"),
    "retina_vessel": ("Vessels in retinal images of four centres", "pictures"),
    "cardiac_lv": ("The left ventricle in MR slices of three hospitals", "slices"),
}
# Every image, as eqs. 8 and 9 are written, and the share that the search chose; named, so that no default moves a row.
_ALL_IMAGES, _FEW_IMAGES = "pathfl+cse(probability=1)", "pathfl+cse(probability=0.25)"
_PATHFL_ROWS = {
    "nuclei_xmod-site": (*BOTH_MEANS, "fedbn", "pathfl-cse-afa", "pathfl-cse", _ALL_IMAGES, _FEW_IMAGES),
    "retina_vessel-site": (*BOTH_MEANS[:2], _FEW_IMAGES),
    "cardiac_lv-site": (*BOTH_MEANS[:2], _FEW_IMAGES),
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
        *(Grid(
            f"{name}-{intensity}",
            f"{title}, `data.intensity = {intensity}`",
            recipe,
            _PATHFL_ROWS.get(f"{name}-{intensity}", (BOTH_MEANS[1], _ALL_IMAGES, _FEW_IMAGES)),
            changes={"federation": name, "data.intensity": intensity},
            reference=BOTH_MEANS[1],
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
        title: {name: (f"{name}-{intensity}", method) for name in _PATHFL}
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
