"""FedNova (Wang et al., NeurIPS 2020)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fednova",
        summary="Averages what the sites moved per step, so that sites with more steps pull no harder.",
        paper="Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, "
        "NeurIPS",
        year=2020,
        parts=(part("fednova"),),
    )
)
