"""FedBCS (Zhao et al., AAAI 2026).

FSR, eqs. 4-7: ``components/features/fsr.py``. CDPA, eqs. 9-17: ``components/objectives/cdpa.py``.
"""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedbcs",
        summary="Recalibrates style inside the encoder and aligns pixels with clustered prototypes of several levels.",
        paper="Zhao et al., Divide, Conquer and Unite: Hierarchical Style-Recalibrated Prototype Alignment, AAAI",
        year=2026,
        parts=(part("weighted_mean"), part("fsr"), part("cdpa")),
    )
)
