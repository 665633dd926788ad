"""FSF3A's FedLocal-CL: Dice and a contrast of regions across two views (Chaitanya et al., NeurIPS 2020)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedlocalcl",
        summary="FedDice whose sites also tell the regions of an image apart across two views of it.",
        paper="Chaitanya et al., Contrastive learning of global and local features for medical image "
        "segmentation with limited annotations, NeurIPS",
        year=2020,
        parts=(part("weighted_mean", weighting="samples"), part("volume_dice"), part("region_contrast")),
        extends="feddice",
    )
)
