"""RSCFed (Liang et al., CVPR 2022)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="rscfed",
        summary="A mean teacher at every site; the server averages random groups and trusts sites near their mean.",
        paper="Liang et al., RSCFed: Random Sampling Consensus Federated Semi-Supervised Learning, CVPR",
        year=2022,
        parts=(part("consensus"), part("mean_teacher")),
        extends="fedavg+consensus",
    )
)
