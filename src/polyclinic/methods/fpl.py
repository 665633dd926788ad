"""FPL (Huang et al., CVPR 2023)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fpl",
        summary="FedAvg with a contrast between pixels and prototypes that the server clusters over the sites.",
        paper="Huang et al., Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR",
        year=2023,
        parts=(part("weighted_mean"), part("cluster_prototypes")),
        extends="fedavg",
    )
)
