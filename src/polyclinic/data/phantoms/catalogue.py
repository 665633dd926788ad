"""The embedded federations by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from polyclinic.core.errors import PolyclinicError, suggestion
from polyclinic.data.phantoms import bladder, cardiac, nuclei, pathology, prostate, spine, tumour
from polyclinic.data.phantoms.drawing import Drawing


@dataclass(frozen=True)
class Demo:
    """One embedded federation: its task, its sites with their numbers of cases, and how an image is drawn."""

    description: str
    classes: tuple[str, ...]
    modality: str
    channels: int
    spatial_dims: int
    size: tuple[int, ...]
    suffix: str
    cases: dict[str, int]
    images_per_case: int
    draw: Callable[[np.random.Generator, str, tuple[int, ...]], Drawing]
    regions: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what is reported, in place of the classes


DEMOS = {
    "nuclei": Demo(
        "cell nuclei in stained tissue, 2D colour, 4 hospitals that stain differently",
        ("background", "nucleus"), "histology", 3, 2, (64, 64), ".png",
        dict(zip(nuclei.STYLES, (30, 18, 12, 8), strict=True)), 2, nuclei.draw,
    ),
    "prostate": Demo(
        "the prostate in MRI volumes cut into slices, 2D grey, 6 hospitals with different scanners",
        ("background", "prostate"), "MRI", 1, 2, (64, 64, 10), ".nii.gz",
        dict(zip(prostate.STYLES, (10, 8, 8, 6, 5, 5), strict=True)), 1, prostate.draw,
    ),
    "tumour": Demo(
        "brain tumours in four MRI channels, 3D, 3 hospitals with different scanners",
        ("background", "tumour"), "MRI", 4, 3, (32, 32, 32), ".nii.gz",
        dict(zip(tumour.STYLES, (14, 9, 6), strict=True)), 1, tumour.draw,
    ),
    "pathology": Demo(
        "nuclei, glands and tumour regions, 2D colour, 16 sites: 7 sources, 3 modalities, 3 organs, 3 scanners",
        ("background", "structure"), "pathology", 3, 2, (64, 64), ".png",
        dict(zip(pathology.SITES, (10, 9, 16, 8, 14, 8, 11, 15, 16, 14, 12, 9, 10, 12, 11, 13), strict=True)), 2,
        pathology.draw,
    ),
    "cardiac": Demo(
        "the heart's ventricles in short-axis MRI volumes cut into slices, 2D grey, 4 vendors of scanners",
        ("background", "left ventricle", "myocardium", "right ventricle"), "MRI", 1, 2, (64, 64, cardiac.SLICES),
        ".nii.gz", dict(zip(cardiac.STYLES, (20, 18, 14, 12), strict=True)), 1, cardiac.draw,
    ),
    "spine": Demo(
        "the spinal cord in axial MRI volumes cut into slices, 2D grey, 4 sites with different scanners",
        ("background", "white matter", "grey matter"), "MRI", 1, 2, (64, 64, spine.SLICES), ".nii.gz",
        dict(zip(spine.STYLES, (18, 14, 16, 12), strict=True)), 1, spine.draw,
        {"cord": ("white matter", "grey matter"), "grey matter": ("grey matter",)},
    ),
    "bladder": Demo(
        "bladder cancer in MRI volumes cut into slices, 2D grey, 4 centres with different scanners",
        ("background", "tumour"), "MRI", 1, 2, (64, 64, bladder.SLICES), ".nii.gz",
        dict(zip(bladder.STYLES, (24, 18, 14, 14), strict=True)), 1, bladder.draw,
    ),
}  # fmt: skip


def find_demo(name: str) -> Demo:
    """The demo of that name, or a sentence with the names there are."""
    if name not in DEMOS:
        known = ", ".join(DEMOS)
        raise PolyclinicError(f"demo '{name}': no such demo{suggestion(name, DEMOS) or f'; choose one of {known}.'}")
    return DEMOS[name]
