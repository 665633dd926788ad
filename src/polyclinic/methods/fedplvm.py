"""FedPLVM (Wang et al., NeurIPS 2024)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedplvm",
        summary="FedAvg with a contrast to prototypes that are clustered at every site and again at the server.",
        paper="Wang et al., Taming Cross-Domain Representation Variance in Federated Prototype Learning with "
        "Heterogeneous Data Domains, NeurIPS",
        year=2024,
        parts=(part("weighted_mean"), part("local_clusters")),
        extends="fedavg",
    )
)
