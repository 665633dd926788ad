"""What pages on the 2D federations have in common."""

from __future__ import annotations

SAME = (
    "Images at native resolution, in patches of 96 x 96 pixels (vessels, nuclei) or the middle of a slice whole (128 x",
    "128 pixels of the heart, 144 x 144 of the brain);",
    "learning rate, rounds and steps are the same for all methods of a table. `fedavg` weights sites by their images,",
    "`fedavg(weighting=uniform)` does not; `local` are the sites' own models at home, `central` has all images in one",
    "place and the steps of all sites together.",
)
BOTH_MEANS = ("fedavg", "fedavg(weighting=uniform)", "local", "central")
# Gliomas lie farther from the middle of a slice than ventricles; its four sites take the steps of four.
GLIOMA = {"data.crop": [144, 144], "data.size": [144, 144], "training.steps_per_epoch": 6}
# Whole slices of 112 x 112 pixels; the peripheral zone lies behind the other, so no mirroring.
PROSTATE = {"data.size": [112, 112], "augmentation.flip": 0.0, "training.steps_per_epoch": 6}
