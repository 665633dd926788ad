"""Named tensors in safetensors files, written atomically, with plain data about them in the metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write
from polyclinic.core.safetensors_header import require_header

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None) -> None:
    """Write named tensors and plain data ``about`` them atomically, as safetensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        # Two names of one storage are legal in memory and not in the format.
        plain[name] = value.clone() if value.untyped_storage().data_ptr() in seen else value
        seen.add(plain[name].untyped_storage().data_ptr())
    with atomic_write(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"about": json.dumps(about or {})})
        except SafetensorError as error:  # what the operating system refused, in safetensors' own wrapping
            raise OSError(str(error)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read named tensors and the plain data about them."""
    return _load(path, with_tensors=True)


def load_about(path: Path) -> dict[str, Any]:
    """Read the plain data alone, without the tensors."""
    return _load(path, with_tensors=False)[1]


def _load(path: Path, with_tensors: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as raw:
            require_header(raw)  # the file may be from elsewhere
        with safe_open(path, framework="pt") as file:
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
            about = json.loads((file.metadata() or {}).get("about", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise PolyclinicError(
            f"{path}: not a readable safetensors file ({error}); restore it from a copy or start a new run."
        ) from error
    return tensors, about
