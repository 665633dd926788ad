"""FSF3A's FedSimCLR: Dice and SimCLR's loss between two views of an image (Chen et al., ICML 2020)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedsimclr",
        summary="FedDice with SimCLR: two views of an image are told from those of all others, behind a projection.",
        paper="Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML",
        year=2020,
        parts=(part("weighted_mean", weighting="samples"), part("volume_dice"), part("simclr")),
        extends="feddice",
    )
)
