"""Images of no known site, scaled by their own mean and deviation (``data.intensity = "site"``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.wording import counted
from polyclinic.data.federation import Federation, Item
from polyclinic.data.preprocessing import prepare
from polyclinic.data.site_intensity import intensity_of
from polyclinic.recipe import DataSettings


def with_own_intensity(
    federation: Federation, items: Sequence[Item], settings: DataSettings, say: Callable[[str], None] = lambda _: None
) -> Federation:
    """The federation with the mean and deviation of all these images together, if they must be known and are not.

    Every image is read for it. One that cannot be read is left out: whoever segments it will say why. ``say`` is told
    whose numbers are used, because with other images in the folder they would be others.
    """
    if settings.intensity != "site" or {item.site for item in items} <= federation.intensity.keys():
        return federation
    moments = []
    for item in items:
        try:
            found = prepare(item, federation, settings)[0].moments
        except PolyclinicError:
            continue
        moments += [] if found is None else [found]
    intensity = intensity_of(moments, settings)
    say(
        f"data.intensity = site: intensities are scaled by the mean and deviation of {counted(len(moments), 'image')} "
        "given here, as if they were all of one site; --site NAME takes those of a site of the run."
    )
    return replace(federation, intensity={**federation.intensity, **{item.site: intensity for item in items}})
