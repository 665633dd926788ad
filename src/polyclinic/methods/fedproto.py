"""FedProto (Tan et al., AAAI 2022)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedproto",
        summary="FedAvg that holds every pixel's embedding near the federation's mean embedding of its class.",
        paper="Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI",
        year=2022,
        parts=(part("weighted_mean"), part("class_prototypes")),
        extends="fedavg",
    )
)
