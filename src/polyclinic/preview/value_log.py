"""What a program reads out of its tensors: noted in a run with numbers, given back in a run that has shapes alone.

A rehearsal on torch's fake tensors needs no memory and almost no time, whatever the size of an image; but a program
that asks such a tensor for a number (a loss for the record, the classes of a batch, a choice by chance) gets none. So
the same program runs first on small images, where everything is read for real, and the fake run hears the same answers
in the same order. Results whose size depends on values, such as the pixels of a class, grow with the tensor they come
from.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_NUMBERS = {_ATEN._local_scalar_dense.default, _ATEN.equal.default}
_SIZED_BY_VALUES = {
    _ATEN.nonzero.default, _ATEN.masked_select.default, _ATEN._unique2.default, _ATEN.bincount.default,
    _ATEN.repeat_interleave.Tensor,
}  # fmt: skip
_ARRAYS = (Tensor.numpy, Tensor.__array__)


class UnreadableValueError(RuntimeError):
    """A run without numbers asked for one that the run with numbers never read."""


class ValueLog:
    """Everything that was read, in order: kind and value. ``by_value`` says that sizes depended on values."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, Any]] = []
        self._next = 0
        self.by_value = False
        self._mode = without_numbers()

    def note(self, kind: object, value: Any) -> None:
        """Write down what was read."""
        self._entries.append((str(kind), value))

    def recall(self, kind: object) -> Any:
        """What was read at this place; stops where the two runs do not ask for the same."""
        noted, value = self._entries[self._next] if self._next < len(self._entries) else ("nothing", None)
        if noted != str(kind):
            raise UnreadableValueError(f"asks for {kind}, where small images were asked for {noted}")
        self._next += 1
        return value

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note what is read in this block."""
        with _RecordArrays(self) as arrays, _RecordNumbers(self, arrays):
            yield

    def strip_numbers(self, network: nn.Module) -> None:
        """Replace all parameters and buffers by fake tensors, in place.

        They are the replay's own: torch converts those of another mode again at every operation.
        """
        for module in network.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    fake = self._mode.from_tensor(parameter.detach())
                    module._parameters[name] = nn.Parameter(fake, parameter.requires_grad)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = self._mode.from_tensor(buffer)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Run this block on tensors without numbers; what was noted is read again."""
        with self._mode, _ReplayArrays(self), _ReplayNumbers(self):
            yield
        left = len(self._entries) - self._next
        if left:
            raise UnreadableValueError(f"reads {left} values less than small images")


def without_numbers() -> FakeTensorMode:
    """Torch's fake tensors; whoever looks for their bytes gets an error, not the memory of something else."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode._allow_unsafe_data_ptr_access = False
    return mode


def _kind(operation: Any, tensor: Tensor) -> str:
    return f"{operation} of {tensor.dtype}"


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _masks(operation: Any, arguments: Sequence[Any]) -> list[Tensor]:
    """The masks by which an operation picks elements, if it is one that does."""
    return [index for index in arguments[1] if _is_mask(index)] if operation is _ATEN.index.Tensor else []


class _RecordNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes single numbers, and the sizes of results that depend on values."""

    def __init__(self, log: ValueLog, arrays: _RecordArrays) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log, self.arrays = log, arrays

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.arrays.inside:
            return result
        if func in _NUMBERS:
            self.log.note(_kind(func, args[0]), result)
        elif func in _SIZED_BY_VALUES:
            first = result[0] if isinstance(result, tuple) else result
            self.log.note(func, (len(first), args[0].numel()))
        elif masks := _masks(func, args):
            self.log.note(func, [(int(mask.sum()), mask.numel()) for mask in masks])
        return result


class _RecordArrays(TorchFunctionMode):
    """Notes lists, arrays, and the number of classes of ``one_hot``: torch reads them past the dispatcher."""

    inside = False  # of one_hot, whose own look at values is its own business

    def __init__(self, log: ValueLog) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        onehot = _is_one_hot(func)
        self.inside = onehot
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self.inside = False
        if onehot:
            self.log.note("one_hot", result.shape[-1])
        elif func is Tensor.tolist:  # a fake tensor reads its list number by number
            for value in args[0].flatten().tolist():
                self.log.note(_kind(_ATEN._local_scalar_dense.default, args[0]), value)
        elif func in _ARRAYS:
            self.log.note("array", result)
        return result


class _ReplayNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives back what ``_RecordNumbers`` noted."""

    def __init__(self, log: ValueLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NUMBERS:
            return self.log.recall(_kind(func, args[0]))
        if func in _SIZED_BY_VALUES:
            return self._sized(func, args, kwargs or {})
        if _masks(func, args):
            return func(args[0], self._as_places(args[1], self.log.recall(func)))
        return func(*args, **(kwargs or {}))

    def _grown(self, noted: tuple[int, int], size: int) -> int:
        """A count among ``noted[1]`` elements, for ``size`` elements."""
        self.log.by_value = self.log.by_value or not _in_augmentation()
        return noted[0] if size == noted[1] else round(noted[0] / noted[1] * size)

    def _as_places(self, indices: Sequence[Tensor | None], noted: Sequence[tuple[int, int]]) -> list[Tensor | None]:
        """Each mask as one tensor of places for each of its axes."""
        counts, places = iter(noted), list[Tensor | None]()
        for index in indices:
            if index is None or not _is_mask(index):
                places.append(index)
                continue
            count = self._grown(next(counts), index.numel())
            places += [torch.zeros(count, dtype=torch.long) for _ in range(index.dim())]
        return places

    def _sized(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An empty result of the size that it would have."""
        source: Tensor = args[0]
        noted = self.log.recall(func)
        count = self._grown(noted, source.numel())
        if func is _ATEN.nonzero.default:
            return torch.empty(count, source.dim(), dtype=torch.long)
        if func is _ATEN.masked_select.default:
            return torch.empty(count, dtype=source.dtype)
        if func is _ATEN.repeat_interleave.Tensor:
            return torch.empty(count, dtype=torch.long)
        if func is _ATEN.bincount.default:  # by the largest value, however many there are
            weights = args[1] if len(args) > 1 else kwargs.get("weights")
            return torch.empty(noted[0], dtype=torch.long if weights is None else torch.double)
        inverse, counts = (bool(args[number]) if len(args) > number else False for number in (2, 3))
        inverse, counts = kwargs.get("return_inverse", inverse), kwargs.get("return_counts", counts)
        return (
            torch.empty(count, dtype=source.dtype),
            torch.empty(source.shape if inverse else 0, dtype=torch.long),
            torch.empty(count if counts else 0, dtype=torch.long),
        )


class _ReplayArrays(TorchFunctionMode):
    """Gives back what ``_RecordArrays`` noted, and copies tensors without a look at their bytes."""

    def __init__(self, log: ValueLog) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_one_hot(func):
            return torch.zeros(*args[0].shape, self.log.recall("one_hot"), dtype=torch.long)
        if func is Tensor.__deepcopy__:
            args[1][id(args[0])] = args[0].detach().clone()
            return args[1][id(args[0])]
        if func in _ARRAYS:
            array = self.log.recall("array")
            if array.shape == tuple(args[0].shape):
                return array
            self.log.by_value = True
            return np.resize(array, tuple(args[0].shape))  # repeats it
        return func(*args, **(kwargs or {}))


def _in_augmentation() -> bool:
    """Whether ``polyclinic.data`` asked, which turns some images of a batch and not others: FLOPs do not hang on it."""
    frame = inspect.currentframe()
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module.startswith("polyclinic.") and module != __name__:
            return module.startswith("polyclinic.data.")
        frame = frame.f_back
    return False


def _is_one_hot(function: Any) -> bool:
    return getattr(function, "__name__", "") == "one_hot"
