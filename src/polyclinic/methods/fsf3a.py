"""FSF3A: the client localized structural loss (CLSL) and scale-aware weights (ASWA).

CLSL, eqs. 1-11, in ``components/objectives/``: ``volume_dice.py`` (eq. 2), ``gradient_alignment.py`` (eqs. 3-8) and
``localized_contrast.py`` (eqs. 1, 9-11). ASWA, eq. 12, is FedAvg by samples:
``components/aggregation/weighted_mean.py``.
"""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fsf3a",
        summary="For volumes: soft Dice, aligned edges, and patches of deep features held near earlier models'.",
        paper="FSF3A: client localized structural loss and adaptive scale-aware weighted aggregation for federated "
        "brain tumour segmentation",
        parts=(
            part("weighted_mean", weighting="samples"),
            part("volume_dice"),
            part("gradient_alignment", omega=0.5),
            part("localized_contrast", gamma=0.5, temperature=0.5, pairing="temporal"),
        ),
        extends="feddice",
    )
)
