"""FedMix (Yoon et al., ICLR 2021): mixup with means of images. Pictures leave the sites."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="fedmix",
        summary="FedAvg with mixup of means of the other sites' images. Averaged images DO leave the sites.",
        paper="Yoon et al., FedMix: Approximation of Mixup under Mean Augmented Federated Learning, ICLR",
        year=2021,
        parts=(part("weighted_mean"), part("fedmix", lam=0.05, images=5)),
        extends="fedavg",
    )
)
