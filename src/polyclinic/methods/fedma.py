"""FedMA (Wang et al., ICLR 2020), with fixed width."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedma",
        summary="FedAvg after the channels of every site's U-Net are matched to those of the global model.",
        paper="Wang et al., Federated Learning with Matched Averaging, ICLR",
        year=2020,
        parts=(part("fedma"),),
    )
)
