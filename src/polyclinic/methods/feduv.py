"""FedUV (Son et al., CVPR 2024)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="feduv",
        summary="FedAvg whose sites keep class probabilities and pixel features as spread as balanced data would.",
        paper="Son et al., FedUV: Uniformity and Variance for Heterogeneous Federated Learning, CVPR",
        year=2024,
        parts=(part("weighted_mean"), part("uniformity_variance", variance=2.5, uniformity=0.5)),
    )
)
