"""PathFL (Zhang et al., Medical Image Analysis 2025)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="pathfl",
        summary="Exchanges image styles, aligns deep features and weights each stage by the sites' similarity.",
        paper="Zhang et al., PathFL: Multi-alignment Federated Learning for pathology image segmentation, "
        "Medical Image Analysis",
        year=2025,
        parts=(part("ssa"), part("cse"), part("afa")),
    )
)
