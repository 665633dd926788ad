"""FSF3A's FedDice: the soft Dice of volumes, averaged by samples (Milletari et al., 3DV 2016)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="feddice",
        summary="FedAvg whose sites train on the soft Dice of the foreground alone.",
        paper="Milletari et al., V-Net: Fully Convolutional Neural Networks for Volumetric Medical "
        "Image Segmentation, 3DV",
        year=2016,
        parts=(part("weighted_mean", weighting="samples"), part("volume_dice")),
    )
)
