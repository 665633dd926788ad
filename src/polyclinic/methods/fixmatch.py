"""FixMatch (Sohn et al., NeurIPS 2020) at every site, with FedAvg."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fixmatch",
        summary="FedAvg in which confident predictions on a weak view are labels of the strong view.",
        paper="Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence, NeurIPS",
        year=2020,
        parts=(part("weighted_mean"), part("fixmatch")),
        extends="fedavg",
    )
)
