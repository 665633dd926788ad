"""FedProx (Li et al., MLSys 2020)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedprox",
        summary="FedAvg with a proximal term that holds local weights near the global ones.",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys",
        year=2020,
        parts=(part("weighted_mean"), part("proximal", mu=0.01)),
        extends="fedavg",
    )
)
