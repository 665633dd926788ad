"""FedBN (Li et al., ICLR 2021)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedbn",
        summary="FedAvg whose normalisation layers stay at each site; every site has a model of its own.",
        paper="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR",
        year=2021,
        parts=(part("weighted_mean", weighting="uniform"), part("local_norm")),
    )
)
