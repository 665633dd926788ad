"""FedHEAL (Chen, Huang, Ye, CVPR 2024)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedheal",
        summary="Averages only updates that keep their direction over rounds; sites that move far gain weight.",
        paper="Chen et al., Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity, "
        "CVPR",
        year=2024,
        parts=(part("consistent_updates", threshold=0.3, beta=0.4),),
    )
)
