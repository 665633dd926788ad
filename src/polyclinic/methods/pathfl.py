"""PathFL (Zhang et al., Medical Image Analysis 2025).

CSE, eqs. 6-9: ``components/images/cse.py``. AFA, eqs. 10-12: ``components/features/afa.py``. SSA, eq. 13:
``components/aggregation/ssa.py``.
"""

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
