"""MOON (Li, He, Song, CVPR 2021)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="moon",
        summary="FedAvg whose sites learn features near the global model's and far from their own previous model's.",
        paper="Li et al., Model-Contrastive Federated Learning, CVPR",
        year=2021,
        parts=(part("weighted_mean"), part("model_contrast", mu=1.0)),
        extends="fedavg",
    )
)
