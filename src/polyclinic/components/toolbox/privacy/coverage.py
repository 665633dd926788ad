"""What of a method's traffic gets noise, and what leaves without."""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.components.base import BuiltMethod, Component
from polyclinic.components.toolbox.privacy.accounting import library
from polyclinic.core.errors import PolyclinicError

ALWAYS_OPEN = (
    "numbers of training images and steps", "mean of each loss term", "seconds", "mean Dice of the validation",
    "whether any foreground was predicted there", "metrics of the test",
)  # fmt: skip
_OR_ALLOW = "or allow it with privacy(uncovered=allow), and epsilon is about the weights alone"


@dataclass(frozen=True)
class Coverage:
    """Parameters that get noise, and in words what leaves beside them, each with the sentence that refuses it."""

    names: tuple[str, ...]
    numbers: int
    refusals: dict[str, str]

    @property
    def uncovered(self) -> list[str]:
        """What leaves without noise and could be kept from doing so."""
        return list(self.refusals)

    def require_all(self) -> None:
        """Raise where something leaves without noise."""
        if self.refusals:
            raise PolyclinicError(next(iter(self.refusals.values())))


def coverage_of(privacy: Component, built: BuiltMethod) -> Coverage:
    """Look at all that the method lets out of a site; refuse what cannot be made private at all."""
    library()
    if built.pooled:
        raise PolyclinicError(
            f"privacy: {built.name} puts all images in one place, which no noise on weights makes private; "
            "leave privacy out or take a method that trains at the sites."
        )
    later = [c.name for c in built.components if c.acts_last and c is not privacy]
    if later:
        raise PolyclinicError(
            f"privacy: must be the last to touch an update, and {later[0]} wants to be that too; drop one of them."
        )
    covered = {n: p for n, p in built.network.named_parameters(remove_duplicate=False) if p.is_floating_point()}
    names = tuple(sorted(built.exchanged & covered.keys()))
    refusals = {
        **_shared_refusals(privacy, built),
        **_weight_refusals(built, built.exchanged - covered.keys()),
    }
    return Coverage(names, sum(covered[name].numel() for name in names), refusals)


def _shared_refusals(privacy: Component, built: BuiltMethod) -> dict[str, str]:
    refusals = {}
    for name, declared in built.declared.items():
        if declared and name != privacy.name:
            tensors = ", ".join(tensor.name for tensor in declared)
            refusals[f"what {name} shares ({tensors})"] = (
                f"privacy: {name} shares {tensors} beside the weights, and they get no noise; drop it (-{name}), "
                f"take another method, {_OR_ALLOW}."
            )
    return refusals


def _weight_refusals(built: BuiltMethod, open_names: frozenset[str]) -> dict[str, str]:
    """Buffers: noise could make a variance negative, and nothing bounds how far one site moves them."""
    if not open_names:
        return {}
    names = sorted(open_names)
    count = "1 buffer" if len(names) == 1 else f"{len(names)} buffers"
    owners = [c.name for c in built.components if any(c.sets(name) for name in names)]
    way_out = (
        f"drop {' and '.join(owners)}"
        if owners
        else 'keep them at the sites with policies.buffers = "keep" or fedbn, take network.norm = "instance" or "group"'
    )
    words = f"{count} of the network ({names[0]}{', ...' if len(names) > 1 else ''})"
    return {words: f"privacy: {words} would leave without noise; {way_out}, {_OR_ALLOW}."}
