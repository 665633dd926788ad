"""FedFA (Zhou, Konukoglu, ICLR 2023)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedfa",
        summary="Uniform FedAvg with randomly redrawn feature statistics, wider where the sites differ.",
        paper="Zhou, Konukoglu, FedFA: Federated Feature Augmentation, ICLR",
        year=2023,
        parts=(part("weighted_mean", weighting="uniform"), part("feature_augmentation")),
    )
)
