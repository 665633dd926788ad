"""What few labels can reach with FedAvg alone, and what all labels would: the bounds of FedSemiDG's tables."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fl_lower",
        summary="FedAvg on the labelled images alone, a lower bound for methods that use the others.",
        parts=(part("weighted_mean"),),
        extends="fedavg",
    )
)
register(
    Method(
        name="fl_upper",
        summary="FedAvg with all labels, those outside of data.labelled too: an upper bound, no method for few labels.",
        parts=(part("weighted_mean"),),
        all_labels=True,
        extends="fedavg",
    )
)
