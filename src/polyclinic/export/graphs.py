"""The network as a graph in a file: ONNX and TorchScript, for any batch and size where the network allows it."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor, nn

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write

_TIMES = (3, 4, 5)  # multiples along each axis of the example: all different, so that no two axes are taken for one
_OTHER_TIMES = (5, 3, 4)
_TOLERANCE = 1e-3  # of logits, relative to the largest: a graph that took a size for a constant is far beyond it
_OPSET = 18
Run = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class PlainModel:
    """A plain network for so many ``channels``, and the size ``(*spatial)`` that the recipe gives it, if it fixes one.

    ``settings`` are those of ``model.json``; writing a graph sets ``inference.fixed_size`` there, to the only size that
    the graph takes or to None for any.
    """

    network: nn.Module
    channels: int
    size: Sequence[int] | None
    settings: dict[str, Any]

    def images(self, size: Sequence[int]) -> Tensor:
        """Noise ``(2, channel, *size)``."""
        return torch.rand(2, self.channels, *size, generator=torch.Generator().manual_seed(0))

    def examples(self) -> Iterator[tuple[list[int] | None, Tensor, Tensor]]:
        """A fixed size or None, images to make a graph with, and others to try it with."""
        multiples = self.settings["inference"]["multiples"]
        sizes = [[m * n for m, n in zip(multiples, times, strict=False)] for times in (_TIMES, _OTHER_TIMES)]
        yield None, self.images(sizes[0]), self.images(sizes[1])
        if self.size is not None:
            yield list(self.size), self.images(self.size), self.images(self.size)


def write_torchscript(model: PlainModel, path: Path) -> None:
    """Trace a network into a file, with the settings inside."""

    def trace(images: Tensor, fixed: bool) -> Any:  # noqa: ARG001
        return torch.jit.trace(model.network, images, check_trace=False)  # type: ignore[no-untyped-call]

    script, buffer = _graph(model, trace, lambda made: made, "TorchScript"), io.BytesIO()
    torch.jit.save(script, buffer, _extra_files={"model.json": json.dumps(model.settings)})
    with atomic_write(path) as temporary, ZipFile(buffer) as whole, ZipFile(temporary, "w") as kept:
        for entry in whole.infolist():
            if not entry.filename.endswith(".debug_pkl"):  # says where on this machine the network's code was
                kept.writestr(entry.filename, whole.read(entry))


def write_onnx(model: PlainModel, path: Path) -> None:
    """Export a network to ONNX, with the settings in its metadata."""

    def export(images: Tensor, fixed: bool) -> Any:
        axes = {0: torch.export.Dim("batch")}
        for axis, step in enumerate([] if fixed else model.settings["inference"]["multiples"]):
            axes[axis + 2] = step * torch.export.Dim(f"size{axis}")
        return torch.onnx.export(
            model.network, (images,), dynamo=True, dynamic_shapes=(axes,), opset_version=_OPSET, verbose=False,
            input_names=["image"], output_names=["logits"],
        )  # fmt: skip

    program = _graph(model, export, _onnx_session, "ONNX")
    _forget_origin(program.model)
    program.model.metadata_props.update({name: json.dumps(value) for name, value in model.settings.items()})
    with atomic_write(path) as temporary:
        program.save(str(temporary))


def _forget_origin(graph: Any) -> None:
    """Take out the exporter's notes: they quote the network's code, and say where on this machine it was."""
    graph.metadata_props.clear()
    graph.graph.metadata_props.clear()
    for node in graph.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*graph.graph.inputs, *graph.graph.initializers.values()):
        value.metadata_props.clear()


def require(*packages: str) -> None:
    """A sentence with the command to install what is missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise PolyclinicError(
            f"--to: this format needs {', '.join(missing)}; install it with: pip install 'polyclinic[export]'."
        )


def _graph(model: PlainModel, make: Callable[[Tensor, bool], Any], run: Callable[[Any], Run], what: str) -> Any:
    """A graph for any size, proved at a second one; else one for the recipe's size alone, if there is one."""
    reason = ""
    for fixed, images, others in model.examples():
        model.settings["inference"]["fixed_size"] = fixed
        try:
            with _quiet():
                made = make(images, fixed is not None)
                if _agrees(run(made), model.network, others[:1]):
                    return made
            reason = "the graph gives other numbers than the network"
        except Exception as error:  # exporters raise whatever a network's code leads them to
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    raise PolyclinicError(
        f"This network cannot be written as {what} ({reason}); try another --to, or segment with `polyclinic predict`."
    )


def _agrees(graph: Run, network: nn.Module, images: Tensor) -> bool:
    with torch.inference_mode():
        wanted, found = network(images), graph(images)
    limit = _TOLERANCE * max(1.0, float(wanted.abs().max()))
    return found.shape == wanted.shape and float((found - wanted).abs().max()) <= limit


def _onnx_session(program: Any) -> Run:
    import onnxruntime

    graph = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of their own future and of branches on sizes; what matters is compared with the network."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(before)
