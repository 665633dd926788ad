"""How many training samples a site elsewhere may count: the weight of its update must fit what it says it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from polyclinic.exchange.messages import Description, Failure, Update

_MOST_SLICES = 4096  # of one volume; a description counts volumes, an update their slices

Describe = Callable[[Sequence[str]], Iterable[Description | Failure]]
"""Asks sites to describe themselves."""


class SampleLimits:
    """Remembers the numbers of images that sites described; one that came later is asked when its update is there.

    The images of all splits count, because which of them train differs between the parts of a protocol.
    """

    def __init__(self, images: Mapping[str, Mapping[str, int]], sliced: bool, describe: Describe) -> None:
        self._totals = {site: sum(counts.values()) for site, counts in images.items()}
        self._sliced, self._describe = sliced, describe

    def problem(self, update: Update) -> str | None:
        """Why an update must be refused, in one sentence, or ``None``."""
        if update.site not in self._totals:
            for answer in self._describe([update.site]):
                if isinstance(answer, Failure):
                    return f"the site has not described its images, and when asked now it {answer.reason}"
                self._totals[update.site] = sum(answer.images.values())
        images = self._totals.get(update.site, 0)
        if update.samples <= images * (_MOST_SLICES if self._sliced else 1):
            return None
        return f"it counts {update.samples} samples, and the site has described {images} images"
