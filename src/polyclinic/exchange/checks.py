"""Validation of what sites send: every update before it touches the global model, every score before it is used.

Sites are not trusted: each check returns ``None``, or why the message must be refused, in one sentence.
How large an update may be beside the others is in ``federation/update_bounds.py`` and ``shared_bounds.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, isnan
from unicodedata import category

import torch
from torch import Tensor

from polyclinic.core.errors import suggestion
from polyclinic.core.wording import printable_line, reads_as_formula
from polyclinic.exchange.declarations import Shared
from polyclinic.exchange.messages import Description, Evaluation, Update, tensor_bytes

_ROW_TYPES = {"site": str, "case": str, "image": str, "class": str, "metric": str, "value": float}
_STATISTICS = {"mean", "sd", "count"}
_COUNT_LIMIT = 2**31  # of anything that a site counts; more would not fit into the arithmetic of a mean
_LARGEST_METRIC = 1e12  # of either sign: the sum over all cases of all sites must stay a number
_LARGEST_VALUE = 1e18  # of a weight or shared number, either sign: its square still fits into 32 bits, a sum too
_LARGEST_COUNT = 2**48  # of pixels, say, which a component counts: tens of thousands of them add up in 64 bits
_LONGEST_NAME = 1000  # characters of a name in a table
_MOST_LOSS_TERMS = 100
_MOST_SECONDS = 1e9  # of a site's round: thirty years
_MOST_WORDS = 100  # in each table of a site's description


def update_problem(
    update: Update, expected: Mapping[str, Tensor], declared: Mapping[str, tuple[Shared, ...]], round_number: int
) -> str | None:
    """Why an update must be refused, in one sentence, or ``None``.

    ``expected`` are the exchanged global weights, ``declared`` what each component may share. A loss may be anything,
    NaN too: a training that skips steps which overflow ends with finite weights and says so by its losses, which is how
    ``federation/recovery.py`` knows that it diverged. The record has ``null`` in the place of what no mean can take.
    """
    if update.round != round_number:
        return f"it answers round {update.round}, not round {round_number}"
    for count, what in ((update.samples, "samples"), (update.steps, "steps")):
        if not 0 <= count < _COUNT_LIMIT:
            return f"it counts {count if abs(count) < _COUNT_LIMIT else 'too many'} {what}"
    if len(update.losses) > _MOST_LOSS_TERMS or not all(map(fits_table, update.losses)):
        return f"it lists {len(update.losses)} terms of its loss, or one whose name no table can hold"
    if not 0 <= update.seconds <= _MOST_SECONDS:  # NaN is not
        return f"it says that it took {update.seconds:g} seconds"
    return _weights_problem(update.weights, expected) or shared_problem(update.shared, declared)


def scores_problem(scores: Evaluation) -> str | None:
    """Why the scores of a site must be refused, in one sentence, or ``None``."""
    if not 0 <= scores.images < _COUNT_LIMIT:
        return f"it counts {scores.images if abs(scores.images) < _COUNT_LIMIT else 'too many'} images"
    if scores.dice < 0 or scores.dice > 1 + 1e-6:  # a Dice of NaN is that of no image
        return f"it has a mean Dice of {scores.dice:g}"
    for row in scores.rows:
        if row.keys() != _ROW_TYPES.keys() or not all(isinstance(row[key], kind) for key, kind in _ROW_TYPES.items()):
            return f"a row must have {', '.join(_ROW_TYPES)}, texts and a number"
        if row["site"] != scores.site:
            return f"it has a row of site '{printable_line(str(row['site']))}'"
        if not all(fits_table(text) for text in row.values() if isinstance(text, str)):
            return "a row has a name that is too long for a table, or not one line, or a formula to a spreadsheet"
        if not fits_mean(row["value"]):
            return f"a row has the value {row['value']}"
    for name, numbers in scores.stats.items():
        if not fits_table(name) or numbers.keys() != _STATISTICS:
            return f"the statistics of '{printable_line(name)}' must have {', '.join(sorted(_STATISTICS))}"
        if not all(map(fits_mean, numbers.values())):
            return f"the statistics of '{name}' hold a value that no mean can take"
    return None


def description_problem(description: Description) -> str | None:
    """Why what a site says of itself cannot be used, in one sentence, or ``None``; its task is another matter."""
    images, versions = description.images, description.versions
    if max(len(images), len(versions)) > _MOST_WORDS:
        return f"it describes {len(images)} splits and {len(versions)} versions, at most {_MOST_WORDS} of each"
    if not all(map(fits_table, (*images, *versions, *versions.values(), description.split_sha256))):
        return "it describes itself with a text that no table can hold"
    if not all(0 <= count < _COUNT_LIMIT for count in images.values()):
        return "it counts fewer than no images, or too many"
    return None


def fits_table(text: str) -> bool:
    """Whether a table, a log and a terminal can hold a text and give it back, and a spreadsheet computes nothing.

    Spaces of other scripts are no letters that print, for Python, and are in honest names of files: macOS puts one into
    those of screenshots. Halves of letters (surrogates), which no file can hold, and escapes of any kind never pass.
    """
    prints = all(letter.isprintable() or category(letter) == "Zs" for letter in text)
    return len(text) <= _LONGEST_NAME and prints and not reads_as_formula(text)


def fits_mean(value: str | float) -> bool:
    """Whether means over cases and sites can take a value; NaN is one that a policy leaves out."""
    return isinstance(value, float | int) and (isnan(value) or (isfinite(value) and abs(value) <= _LARGEST_METRIC))


def _weights_problem(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    missing, unknown = expected.keys() - weights.keys(), weights.keys() - expected.keys()
    if missing:
        return f"{len(missing)} weights are missing, '{min(missing)}' first"
    if unknown:
        first = min(unknown)
        return f"'{first}' is not a weight of this model{suggestion(first, expected)}"
    for name, tensor in weights.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return (
                f"'{name}' is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"expected {wanted.dtype} of shape {tuple(wanted.shape)}"
            )
        problem = values_problem(name, tensor)
        if problem is not None:
            return problem
    return None


def values_problem(name: str, tensor: Tensor) -> str | None:
    """Why the values of a weight cannot be used, in one sentence, or ``None``; one pass over them."""
    largest = largest_value(tensor)
    if not isfinite(largest):
        return f"'{name}' holds NaN or infinite values (the training diverged; try a lower learning rate)"
    if largest > _LARGEST_VALUE:
        return f"'{name}' holds a value of {largest:.3g}, at most {_LARGEST_VALUE:g} can be used"
    return None


def shared_problem(
    shared: Mapping[str, Mapping[str, Tensor]], declared: Mapping[str, tuple[Shared, ...]]
) -> str | None:
    """Why what components share is not what they declared, in one sentence, or ``None``."""
    for component in sorted(shared.keys() | declared.keys()):
        wanted = {declaration.name: declaration for declaration in declared.get(component, ())}
        tensors = shared.get(component, {})
        if wanted.keys() != tensors.keys():
            odd = min(wanted.keys() ^ tensors.keys())
            side = "declares but does not share" if odd in wanted else "shares without declaring"
            return f"component {component} {side} '{odd}'"
        if component not in declared:
            return f"component {component} is not declared"
        for name, tensor in tensors.items():
            problem = _tensor_problem(tensor, wanted[name])
            if problem is not None:
                return f"component {component} shares {problem}"
        problem = _sizes_problem(component, tensors, wanted)
        if problem is not None:
            return problem
    return None


def _tensor_problem(tensor: Tensor, declared: Shared) -> str | None:
    """What of a shared tensor was not declared, as the end of a sentence."""
    name, rows, below = declared.name, declared.at_most, declared.below
    if not declared.accepts(tensor):
        return (
            f"'{name}' as {tensor.dtype} of shape {tuple(tensor.shape)}, "
            f"declared is {declared.dtype} of shape {declared.shape}"
        )
    largest = largest_value(tensor) if declared.finite else 0.0
    if not isfinite(largest):
        return f"NaN or infinite values in '{name}'"
    if largest > _LARGEST_VALUE:
        return f"a value of {largest:.3g} in '{name}', at most {_LARGEST_VALUE:g} can be used"
    if rows is not None and len(tensor) > rows:
        return f"{len(tensor)} rows in '{name}', at most {rows} are declared"
    if below is not None and tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < below:
        return f"'{name}' with values outside 0 to {below - 1}"
    return _range_problem(tensor, declared)


def _range_problem(tensor: Tensor, declared: Shared) -> str | None:
    """What of a shared tensor is too small, or too much to be counted, as the end of a sentence."""
    if declared.at_least is None or not tensor.numel():
        return None
    small = tensor < declared.at_least  # NaN, which some tensors may hold, is not
    if small.any():
        lowest = float(tensor[small].min())
        return f"a value of {lowest:.3g} in '{declared.name}', which is at least {declared.at_least:g}"
    if not tensor.is_floating_point() and int(tensor.max()) > _LARGEST_COUNT:
        return f"a count of {int(tensor.max()):.3g} in '{declared.name}', at most {_LARGEST_COUNT:.3g} can be used"
    return None


def _sizes_problem(component: str, tensors: Mapping[str, Tensor], wanted: Mapping[str, Shared]) -> str | None:
    """Sizes that are only known at run time must agree wherever they carry one name."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, tensor in tensors.items():
        for label, size in zip(wanted[name].shape, tensor.shape, strict=True):
            if isinstance(label, str) and sizes.setdefault(label, (size, name))[0] != size:
                first, other = sizes[label]
                return f"component {component} shares {first} {label} in '{other}' and {size} in '{name}'"
    return None


def shared_amount(tensors: Mapping[str, Tensor], declared: tuple[Shared, ...]) -> dict[str, int]:
    """Bytes of what a component shared and, where rows are prototypes, their number; absent classes are zeros."""
    amount = {"bytes": tensor_bytes(tensors)}
    rows = [tensors[declaration.name] for declaration in declared if declaration.prototypes]
    return amount | {"prototypes": sum(int(row.any(1).sum()) for row in rows)} if rows else amount


def is_finite(tensor: Tensor) -> bool:
    """A sum is finite only if every value is, and takes a tenth of the time; only an overflow needs the long way."""
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum())):
        return True
    return bool(torch.isfinite(tensor).all())


def largest_value(tensor: Tensor) -> float:
    """The largest absolute value of a floating tensor, NaN where it holds one; 0 where it holds none."""
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    low, high = map(float, torch.aminmax(tensor))  # both are NaN where one value is
    return max(abs(low), abs(high))
