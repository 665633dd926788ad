"""FGASL (FedSemiDG, Medical Image Analysis).

GAA, eqs. 4-5: ``components/aggregation/gaa.py``. DR, eqs. 6-9: ``components/objectives/dual_teacher.py``. PIA, eq. 10:
``components/objectives/perturbation_invariance.py``.
"""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fgasl",
        summary="For few labels and unseen sites: gap-aware weights, two teachers' pseudo labels, robust features.",
        paper="FedSemiDG: Domain Generalized Federated Semi-Supervised Medical Image Segmentation, "
        "Medical Image Analysis",
        year=2025,
        parts=(part("gaa"), part("dual_teacher"), part("perturbation_invariance")),
        extends="fedavg+gaa",
        # Table 5: rows without DR learn unlabelled images from FixMatch as the released code has it.
        instead={"dual_teacher": "fixmatch(threshold=0.7,dice=true)"},
    )
)
