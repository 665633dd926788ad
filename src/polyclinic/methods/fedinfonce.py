"""FSF3A's FedInfoNCE: Dice and InfoNCE between two views of an image (van den Oord et al., 2018)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedinfonce",
        summary="FedDice whose sites also tell images apart by the features of a second view.",
        paper="van den Oord et al., Representation Learning with Contrastive Predictive Coding",
        year=2018,
        parts=(part("weighted_mean", weighting="samples"), part("volume_dice"), part("infonce")),
        extends="feddice",
    )
)
