"""SCAFFOLD (Karimireddy et al., ICML 2020)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="scaffold",
        summary="Uniform FedAvg whose local steps are corrected by control variates, against the drift of the sites.",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML",
        year=2020,
        parts=(part("weighted_mean", weighting="uniform"), part("scaffold")),
    )
)
