"""FSF3A's FedSwAV: Dice and cluster assignments swapped between two views (Caron et al., NeurIPS 2020)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedswav",
        summary="FedDice with SwAV: which prototypes a view belongs to is predicted from the other view.",
        paper="Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments, NeurIPS",
        year=2020,
        parts=(part("weighted_mean", weighting="samples"), part("volume_dice"), part("swav")),
        extends="feddice",
    )
)
