"""HarmoFL (Jiang, Wang, Dou, AAAI 2022)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="harmofl",
        summary="Uniform FedAvg on images with one common amplitude, trained at perturbed weights for flat optima.",
        paper="Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous "
        "Medical Images, AAAI",
        year=2022,
        parts=(
            part("weighted_mean", weighting="uniform"),
            part("amplitude_normalisation"),
            part("weight_perturbation", alpha=0.05),
        ),
    )
)
