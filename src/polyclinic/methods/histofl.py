"""HistoFL (Lu et al., Medical Image Analysis 2022)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="histofl",
        summary="FedAvg of weights that carry Gaussian noise in proportion to their spread.",
        paper="Lu et al., Federated learning for computational pathology on gigapixel whole slide images, "
        "Medical Image Analysis",
        year=2022,
        parts=(part("weighted_mean"), part("weight_noise", noise_level=0.01)),
        extends="fedavg",
    )
)
