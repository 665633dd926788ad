"""DPL (Qiu et al., IEEE JBHI 2023)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="dpl",
        summary="FedAvg with pseudo labels, refreshed every round, that disturbed looks and prototypes agree on.",
        paper="Qiu et al., Federated Semi-Supervised Learning for Medical Image Segmentation via Pseudo-Label "
        "Denoising, IEEE JBHI",
        year=2023,
        parts=(part("weighted_mean"), part("denoised_labels")),
        extends="fedavg",
    )
)
