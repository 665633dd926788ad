"""FedContrast-GPA (Zhou, Zheng, MICCAI 2023), re-implemented from the abstract: no code was released."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedcontrast",
        summary="Contrasts pixels with clustered prototypes of own and other sites (re-implemented from the abstract).",
        paper="Zhou and Zheng, FedContrast-GPA: Heterogeneous Federated Optimization via Local Contrastive Learning "
        "and Global Process-Aware Aggregation, MICCAI",
        year=2023,
        parts=(part("process_aware_mean"), part("prototype_contrast")),
    )
)
