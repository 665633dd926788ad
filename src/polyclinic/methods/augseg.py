"""AugSeg (Zhao et al., CVPR 2023) at every site, with FedAvg."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="augseg",
        summary="FedAvg with a slow teacher's labels for strongly changed images; unsure ones get labelled boxes.",
        paper="Zhao et al., Augmentation Matters: A Simple-yet-Effective Approach to Semi-supervised Semantic "
        "Segmentation, CVPR",
        year=2023,
        parts=(part("weighted_mean"), part("augseg")),
        extends="fedavg",
    )
)
