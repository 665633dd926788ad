"""The pages: which methods are compared on which federations."""

from __future__ import annotations

from page import Grid, Page, Search

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
        ),
    ),
)

_SAME = (
    "Images at native resolution, in patches of 96 x 96 pixels (vessels, nuclei) or whole (slices of 192 x 192);",
    "learning rate, rounds and steps are the same for all methods of a table. `fedavg` weights sites by their images,",
    "`fedavg(weighting=uniform)` does not; `local` are the sites' own models at home, `central` has all images in one",
    "place and the steps of all sites together.",
)
_BOTH_MEANS = ("fedavg", "fedavg(weighting=uniform)", "local", "central")
# As released, with foreground alone as anchors; as the paper's eqs. 15 and 16, all classes; with a smaller weight.
_FEDBCS = (*_BOTH_MEANS[:2], "fedbcs(anchors=foreground)", "fedbcs", "fedbcs(weight=0.1)")

FEDBCS = Page(
    "fedbcs",
    "FedBCS before and after: which pixels are anchors of CDPA",
    (*_SAME, "`fedbcs(anchors=foreground)` was the default before, as in the released code."),
    tuple(
        Grid(name, title, recipe, _FEDBCS, changes={"federation": name})
        for name, title, recipe in (
            ("retina_vessel", "Vessels in retinal images of four centres", "pictures"),
            ("cardiac_lv", "The left ventricle in MR slices of three hospitals", "slices"),
            ("brain_lgg", "Glioma in MR slices of four hospitals", "slices"),
        )
    ),
)

_PATHFL = {
    "nuclei_xmod": ("Nuclei in seven sets of four kinds", "pictures"),
    "retina_vessel": ("Vessels in retinal images of four centres", "pictures"),
    "cardiac_lv": ("The left ventricle in MR slices of three hospitals", "slices"),
}
_PATHFL_ROWS = {
    "nuclei_xmod-site": (*_BOTH_MEANS, "pathfl-cse-afa", "pathfl-cse", "pathfl"),
    "nuclei_xmod-full-range": (*_BOTH_MEANS[:2], "pathfl-cse", "pathfl"),
}

PATHFL = Page(
    "pathfl",
    "PathFL before and after: intensities of the image or of the site",
    (*_SAME, "Before, recipes of PathFL had intensities from 0 to 1; now each site has its own mean and deviation."),
    (
        Search(
            "search",
            "Which settings: searched on nuclei",
            "pictures",
            (
                "pathfl", "pathfl+cse(exclude_self=false)", "pathfl+cse(probability=0.5)",
                "pathfl+cse(probability=0.25)", "pathfl+cse(statistics=channel)",
                "pathfl+cse(statistics=channel,probability=0.25)",
            ),
            changes={"federation": "nuclei_xmod", "data.intensity": "site", "evaluation.training_images": False},
        ),
        *(Grid(
            f"{name}-{intensity}",
            f"{title}, `data.intensity = {intensity}`",
            recipe,
            _PATHFL_ROWS.get(f"{name}-{intensity}", (*_BOTH_MEANS[:2], "pathfl")),
            changes={"federation": name, "data.intensity": intensity},
        )
        for name, (title, recipe) in _PATHFL.items()
        for intensity in ("site", "full-range")),
    ),
)  # fmt: skip

# The strong view before: contrast, brightness and blur, the first two of which instance norm takes out again.
_OLD_VIEW = {"strong.clip": False, "strong.gamma": 0.0, "strong.noise": 0.0}
FGASL = Page(
    "fgasl",
    "FGASL before and after: strong views that the network's norm cancels, and views that it does not",
    (
        *_SAME,
        "12 labelled images a site; every site is left out once and tested with all of its images. `fl_lower` is",
        "FedAvg on the labelled images alone, `fl_upper` with all labels.",
    ),
    tuple(
        Grid(
            f"{name}-{view}",
            f"{title}, {words}",
            "pictures",
            ("fl_lower", "fl_upper", "fixmatch", "fgasl"),
            changes={
                "federation": name, "data.labelled": 12, "protocol.kind": "leave-one-site-out",
                "training.rounds": 24, **changes,
            },
        )
        for name, title in (
            ("cardiac_lv", "The left ventricle"),
            ("brain_lgg", "Glioma"),
            ("retina_vessel", "Vessels"),
        )
        for view, words, changes in (("before", "the old strong view", _OLD_VIEW), ("after", "the new one", {}))
    ),
)  # fmt: skip

PAGES = {page.name: page for page in (FSF3A, FEDBCS, PATHFL, FGASL)}
