"""FSF3A's FedFoc-Tvers: the focal Tversky loss, averaged by samples (Abraham, Khan, ISBI 2019)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedfocaltversky",
        summary="FedAvg with a supervised loss in which missed foreground costs more than false alarms.",
        paper="Abraham, Khan, A Novel Focal Tversky Loss Function with Improved Attention U-Net for "
        "Lesion Segmentation, ISBI",
        year=2019,
        parts=(part("weighted_mean", weighting="samples"), part("focal_tversky")),
    )
)
