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
    "Images at native resolution, in patches of 96 x 96 pixels (vessels, nuclei) or the middle of a slice whole (128 x",
    "128 pixels of the heart, 144 x 144 of the brain);",
    "learning rate, rounds and steps are the same for all methods of a table. `fedavg` weights sites by their images,",
    "`fedavg(weighting=uniform)` does not; `local` are the sites' own models at home, `central` has all images in one",
    "place and the steps of all sites together.",
)
_BOTH_MEANS = ("fedavg", "fedavg(weighting=uniform)", "local", "central")
# As released, with foreground alone as anchors; as the paper's eqs. 15 and 16, all classes; with a smaller weight. All
# settings that matter are named, so that no default moves a row.
_FOREGROUND, _ALL, _LESS = "fedbcs(anchors=foreground,weight=1)", "fedbcs(weight=1)", "fedbcs(weight=0.1)"
_FEDBCS = (*_BOTH_MEANS[:2], _FOREGROUND, _ALL, _LESS)
_FSR_ALONE = "fedbcs-cdpa"
_BEFORE_AFTER = (*_BOTH_MEANS[:2], _FOREGROUND, _LESS)
# Gliomas lie farther from the middle of a slice than ventricles; its four sites take the steps of four.
_GLIOMA = {"data.crop": [144, 144], "data.size": [144, 144], "training.steps_per_epoch": 6}

FEDBCS = Page(
    "fedbcs",
    "FedBCS before and after: which pixels are anchors of CDPA",
    (*_SAME, f"`{_FOREGROUND}` was the default before, as in the released code."),
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
        *(Grid(
            name, title, recipe, rows, changes={"federation": name.removesuffix("-batch"), **changes},
            advises="network.norm" not in changes,
        )
        for name, title, recipe, rows, changes in (
            ("retina_vessel", "Vessels in retinal images of four centres", "pictures",
             (*_BOTH_MEANS, "fedbn", *_FEDBCS[2:], _FSR_ALONE), {}),
            # FSR blends a map with its instance norm: in a network of instance norms there is nothing left to blend.
            ("retina_vessel-batch", "Vessels, a network of batch norms", "pictures",
             (*_FEDBCS, _FSR_ALONE), {"network.norm": "batch"}),
            ("cardiac_lv", "The left ventricle in MR slices of three hospitals", "slices", _BEFORE_AFTER, {}),
            ("brain_lgg", "Glioma in MR slices of four hospitals", "slices", _BEFORE_AFTER, _GLIOMA),
            ("cardiac_lv-batch", "The left ventricle, a network of batch norms", "slices",
             (*_BEFORE_AFTER, _FSR_ALONE), {"network.norm": "batch"}),
            ("brain_lgg-batch", "Glioma, a network of batch norms", "slices",
             (*_BEFORE_AFTER, _FSR_ALONE), {**_GLIOMA, "network.norm": "batch"}),
        )),
    ),
    overall={
        title: {
            f"{words}{norm}": (f"{name}{suffix}", method)
            for suffix, norm in (("", ""), ("-batch", ", batch norm"))
            for name, words in (
                ("retina_vessel", "vessels"), ("cardiac_lv", "left ventricle"), ("brain_lgg", "glioma"),
            )
        }
        for title, method in {
            "FedAvg, by samples": "fedavg", "FedAvg, uniform": _BOTH_MEANS[1],
            "before: anchors of the foreground": _FOREGROUND, "all classes as anchors": _ALL,
            "all classes, weight 0.1": _LESS, "FSR alone": _FSR_ALONE,
        }.items()
    },
)  # fmt: skip

_PATHFL = {
    "nuclei_xmod": ("Nuclei in seven sets of four kinds", "pictures"),
    "retina_vessel": ("Vessels in retinal images of four centres", "pictures"),
    "cardiac_lv": ("The left ventricle in MR slices of three hospitals", "slices"),
}
# Every image, as eqs. 8 and 9 are written, and the share that the search chose; named, so that no default moves a row.
_ALL_IMAGES, _FEW_IMAGES = "pathfl+cse(probability=1)", "pathfl+cse(probability=0.25)"
_PATHFL_ROWS = {
    "nuclei_xmod-site": (*_BOTH_MEANS, "fedbn", "pathfl-cse-afa", "pathfl-cse", _ALL_IMAGES, _FEW_IMAGES),
    "retina_vessel-site": (*_BOTH_MEANS[:2], _FEW_IMAGES),
    "cardiac_lv-site": (*_BOTH_MEANS[:2], _FEW_IMAGES),
}

PATHFL = Page(
    "pathfl",
    "PathFL before and after: intensities of the image or of the site",
    (
        *_SAME,
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
            _PATHFL_ROWS.get(f"{name}-{intensity}", (_BOTH_MEANS[1], _ALL_IMAGES, _FEW_IMAGES)),
            changes={"federation": name, "data.intensity": intensity},
            reference=_BOTH_MEANS[1],
        )
        for name, (title, recipe) in _PATHFL.items()
        for intensity in ("site", "full-range")),
        Grid(
            "nuclei_xmod-zero-one",
            "Nuclei, `data.intensity = zero-one`, each image from 0 to 1",
            "pictures",
            (_BOTH_MEANS[1],),
            changes={"federation": "nuclei_xmod", "data.intensity": "zero-one"},
            advises=False,
        ),
        # The norm of FedSODA, the authors' released code of the work before.
        Grid(
            "nuclei_xmod-group",
            "Nuclei, `data.intensity = site`, a network of group norms",
            "pictures",
            (*_BOTH_MEANS[:2], _ALL_IMAGES, _FEW_IMAGES),
            changes={"federation": "nuclei_xmod", "data.intensity": "site", "network.norm": "group"},
            reference=_BOTH_MEANS[1],
            advises=False,
        ),
    ),
    overall={
        title: {name: (f"{name}-{intensity}", method) for name in _PATHFL}
        for title, intensity, method in (
            ("before: FedAvg uniform, full range", "full-range", _BOTH_MEANS[1]),
            ("before: PathFL, full range, CSE on every image", "full-range", _ALL_IMAGES),
            ("PathFL, full range, CSE on a quarter", "full-range", _FEW_IMAGES),
            ("after: FedAvg by samples, intensities of the site", "site", "fedavg"),
            ("after: FedAvg uniform, intensities of the site", "site", _BOTH_MEANS[1]),
            ("PathFL, intensities of the site, CSE on every image", "site", _ALL_IMAGES),
            ("after: PathFL, intensities of the site, CSE on a quarter", "site", _FEW_IMAGES),
        )
    },
)  # fmt: skip

# The strong view before: contrast, brightness and blur, the first two of which instance norm takes out again.
_OLD_VIEW = {"strong.clip": False, "strong.gamma": 0.0, "strong.noise": 0.0}
# As many settings for each method of the family, its published ones first: teachers that follow in hundreds of steps
# and not in thousands, a mask that lets more pixels in, less weight.
_TRIES = {
    "fixmatch": ("", "(threshold=0.7,dice=true)", "(weight=0.3)"),
    "fgasl": ("", "(dice=false)", "(dice=false,quantiles=class)"),
    "rscfed": ("", "(ema=0.99)", "(ema=0.99,weight=0.3)"),
    "fedcd": ("", "(ema=0.99)", "(ema=0.99,weight=0.3)"),
    "augseg": ("", "(ema=0.99)", "(ema=0.99,threshold=0.7)"),
    "dpl": ("", "(confidence=0.6)", "(weight=0.3)"),
}
# Six labels and as many steps leave room between the bounds: with twelve and 8 steps at a site FedAvg on the labels had
# a validation Dice of 69.8 on the ventricle, and 72.0 with all labels (three seeds).
_FEW_LABELS = {
    "data.labelled": 6, "training.batch_size": 2, "training.rounds": 20, "training.steps_per_epoch": 12,
    "training.validate_every": 10, "evaluation.training_images": False,
}  # fmt: skip
FGASL = Page(
    "fgasl",
    "FGASL before and after: strong views that the network's norm cancels, and views that it does not",
    (
        *_SAME,
        "6 labelled images a site; tested on the own test images of all sites. `fl_lower` is FedAvg on the labelled",
        "images alone, `fl_upper` with all labels. Unseen sites are another question, with tables of its own.",
        "Every method of the family gets three settings, searched with half of the rounds; one that is not published",
        "must be a point better with both seeds. Validation images keep their labels: the search is not few-label.",
    ),
    tuple(
        Search(
            f"search-{method}",
            f"Which settings of `{method}`: searched on the left ventricle",
            "slices",
            tuple(f"{method}{settings}" for settings in tried),
            changes={**_FEW_LABELS, "federation": "cardiac_lv", "training.rounds": 10},
        )
        for method, tried in _TRIES.items()
    )
    + tuple(
        Grid(
            f"{name}-{view}",
            f"{title}, {words}",
            recipe,
            rows,
            changes={**_FEW_LABELS, "federation": name, **middle, **changes},
            reference=rows[0],
        )
        # Not the vessels: their sites have too few images for most to go without a label.
        for name, title, recipe, middle in (
            ("cardiac_lv", "The left ventricle", "slices", {}),
            ("brain_lgg", "Glioma", "slices", _GLIOMA),
            ("nuclei_xmod", "Nuclei", "pictures", {"training.steps_per_epoch": 6}),
        )
        for view, words, rows, changes in (
            ("after", "the new strong view", ("fl_lower", "fl_upper", "fixmatch", "fgasl"), {}),
            # The bounds read no unlabelled image: their rows are those of the other view.
            ("before", "the old strong view", ("fixmatch", "fgasl"), _OLD_VIEW),
        )
    ),
    overall={
        title: {name: (f"{name}-{view}", method) for name in ("cardiac_lv", "brain_lgg", "nuclei_xmod")}
        for title, view, method in (
            ("FedAvg on the labels alone (`fl_lower`)", "after", "fl_lower"),
            ("before: FixMatch", "before", "fixmatch"), ("before: FGASL", "before", "fgasl"),
            ("after: FixMatch", "after", "fixmatch"), ("after: FGASL", "after", "fgasl"),
            ("FedAvg with all labels (`fl_upper`)", "after", "fl_upper"),
        )
    },
)  # fmt: skip

PAGES = {page.name: page for page in (FSF3A, FEDBCS, PATHFL, FGASL)}
