"""The two references that frame every federated method: no exchange, and all data in one place."""

from polyclinic.methods.registry import Method, part, register

register(
    Method(
        name="local",
        summary="Every site trains alone and keeps its model: the lower reference.",
        parts=(part("no_exchange"),),
    )
)

register(
    Method(
        name="central",
        summary="All images in one place, one model: the upper reference. Images DO leave the sites.",
        parts=(part("weighted_mean"),),
        pooled=True,
    )
)
