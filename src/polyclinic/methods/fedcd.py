"""FedCD (Liu et al., AAAI 2024)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedcd",
        summary="FedAvg in which unlabelled images follow a local and a global teacher, rare classes counting more.",
        paper="Liu et al., FedCD: Federated Semi-Supervised Learning with Class Awareness Balance via Dual Teachers, "
        "AAAI",
        year=2024,
        parts=(part("weighted_mean"), part("class_distillation")),
        extends="fedavg",
    )
)
