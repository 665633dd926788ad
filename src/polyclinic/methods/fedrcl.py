"""FedRCL (Seo et al., CVPR 2024)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedrcl",
        summary="FedAvg with a contrast between classes that keeps the pixels of one class from collapsing.",
        paper="Seo et al., Relaxed Contrastive Learning for Federated Learning, CVPR",
        year=2024,
        parts=(part("weighted_mean"), part("fedrcl", weight=1.0, beta=1.0, tau=0.05, threshold=0.7)),
        extends="fedavg",
    )
)
