"""FedAvg (McMahan et al., AISTATS 2017)."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedavg",
        summary="Every site trains the global model on its own images; the server averages the weights.",
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS",
        year=2017,
        parts=(part("weighted_mean", weighting="samples"),),
    )
)
