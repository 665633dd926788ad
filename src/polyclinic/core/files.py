"""Files that are either whole or not there, and the two formats that cross a boundary: JSON and safetensors."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyclinic.core.errors import PolyclinicError

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive_lock(
    folder: Path, taken: str = "another process is working here; wait for it.", patience: float = 0
) -> Iterator[None]:
    """Keep other processes out of a folder; the lock ends with the process, however it ends.

    ``patience`` is the time to wait for a process that is about to end, in seconds.
    """
    ends = time.monotonic() + patience
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise PolyclinicError(
            f"{folder}: cannot be written ({error.strerror or error}); choose another folder with --out."
        ) from error
    with file:
        while fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() >= ends:
                    raise PolyclinicError(f"{folder}: {taken}") from error
            time.sleep(0.2)
        yield


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; move it over ``path`` when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        advice = "free some space" if error.errno in (None, errno.ENOSPC, errno.EDQUOT) else "choose another folder"
        raise PolyclinicError(f"{path}: cannot be written ({error.strerror or error}); {advice}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_private(path: Path, data: bytes) -> None:
    """Write a secret atomically; from its first byte only its owner can read it, whatever the umask."""
    with atomic_write(path) as temporary:
        temporary.unlink(missing_ok=True)  # of a killed process that had this number
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)


def read_bytes(path: Path) -> bytes:
    """Read a small file that the user named; a missing one gets a sentence."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PolyclinicError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions."
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write plain data atomically, readable by a person."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Read plain data; a damaged file gets a sentence."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolyclinicError(f"{path}: cannot be read as JSON ({error}); restore it or start a new run.") from error


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
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            about = json.loads((file.metadata() or {}).get("about", "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise PolyclinicError(
            f"{path}: not a readable safetensors file ({error}); restore it from a copy or start a new run."
        ) from error
    return tensors, about


def cache_folder() -> Path:
    """The folder for what can be made again: ``$POLYCLINIC_CACHE``, else the user's cache folder."""
    named = os.environ.get("POLYCLINIC_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyclinic"
