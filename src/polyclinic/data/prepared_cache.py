"""The folder of prepared images: entries are found by key, written once, and removed when others need their room.

An entry is one file, readable by its owner alone. While it is made it has another name and its maker holds a lock on
it; then it is renamed, so that an entry that exists is whole. Processes that use an entry share a lock on it, and only
entries that nobody uses are removed. Locks end with their process: what a killed one left behind is made anew.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import cache_folder, private_folder
from polyclinic.core.locks import try_exclusive_lock
from polyclinic.core.wording import MB, readable_bytes
from polyclinic.data.cache_entry import CacheUnusableError, Entry, read_entry, unusable_if_it_fails
from polyclinic.recipe import DataSettings

_SUFFIX, _HASHES = ".safetensors", "hashes"
_ENTRY = re.compile(rf"\.?(images|labels)-[0-9a-f]{{32}}{re.escape(_SUFFIX)}(\.part)?")
_CLUTTER = (".DS_Store", "Thumbs.db", "desktop.ini")
_WAIT = 0.1  # seconds between two looks at an entry that another process makes
_FORGOTTEN_AFTER = 90 * 24 * 3600  # seconds after which the hashes of a folder's files are no longer remembered
Say = Callable[[str], None]


@dataclass(frozen=True)
class StoredFile:
    """A file of the cache; ``last_use`` is in seconds since 1970."""

    path: Path
    bytes: int
    last_use: float


def cache_of(settings: DataSettings) -> PreparedCache | None:
    """The cache that a recipe asks for; none where ``data.cache`` is ``off``."""
    if settings.cache == "off":
        return None
    folder = Path(settings.cache).expanduser() if settings.cache else default_cache_folder()
    return PreparedCache(folder, settings.cache_limit_mb * MB)


def default_cache_folder() -> Path:
    """Where prepared images are unless ``data.cache`` names another folder."""
    return cache_folder() / "prepared"


def named_cache(folder: Path) -> PreparedCache:
    """The cache in a folder that a person named: it must be there and hold nothing else, as all of it may be removed.

    So a wrong name never costs a run its checkpoints, which are files of the same kind.
    """
    folder = folder.expanduser()
    advice = "give a folder that data.cache names, or none for that of polyclinic"
    try:
        others = [path.name for path in sorted(folder.iterdir()) if not _is_of_a_cache(path)]
    except FileNotFoundError:
        raise PolyclinicError(f"{folder}: no such folder; {advice}.") from None
    except OSError as error:
        raise PolyclinicError(f"{folder}: cannot be read as a folder ({error.strerror or error}); {advice}.") from error
    if others:
        raise PolyclinicError(f"{folder}: no folder of prepared images, as it holds {others[0]}; {advice}.")
    return PreparedCache(folder, 0)


def _is_of_a_cache(path: Path) -> bool:
    if path.is_dir():
        return path.name == _HASHES
    return _ENTRY.fullmatch(path.name) is not None or path.name in _CLUTTER


class PreparedCache:
    """Entries of a folder, up to ``limit`` bytes."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit

    @property
    def hashes(self) -> Path:
        """Where hashes of files are remembered."""
        return self.folder / _HASHES

    def holds(self, name: str) -> bool:
        """Whether there is an entry of this name."""
        return self._path(name).is_file()

    def find(self, name: str) -> Entry | None:
        """An entry, if it is there; one that is damaged is removed."""
        try:
            return read_entry(self._path(name))
        except ValueError:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and _allow_more_files():
                return self.find(name)
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR):
                raise CacheUnusableError(error.strerror or str(error)) from error
        return None

    @contextmanager
    def making(self, names: Sequence[str], say: Say = lambda _: None) -> Iterator[dict[str, int]]:
        """Open files for new entries; gives descriptors, without those that another process made meanwhile.

        A process that makes one of them is waited for. Files that were not given to ``add`` are removed in the end.
        """
        with ExitStack() as stack:
            opened: dict[str, int] = {}
            with unusable_if_it_fails():
                private_folder(self.folder)
                for name in sorted(names):  # in one order everywhere: two processes never wait for each other
                    descriptor = self._take(name, say)
                    if descriptor is not None:
                        opened[name] = descriptor
                        stack.callback(self._drop, name, descriptor)
            yield opened

    def add(self, names: Sequence[str]) -> None:
        """Make entries of files that are finished."""
        with unusable_if_it_fails():
            for name in names:
                self._part(name).replace(self._path(name))

    def make_room(self, wanted: int) -> None:
        """Remove the least recently used entries that nobody uses until so many bytes more fit under the limit."""
        self._tidy()
        stored = self.stored()
        being_made = sum(file.bytes for file in self._listed(f".*{_SUFFIX}.part"))
        total = sum(file.bytes for file in stored) + being_made + wanted
        for file in stored if wanted <= self.limit else ():  # nothing goes in vain
            if total > self.limit and remove_unused(file.path):
                total -= file.bytes
        if total > self.limit:
            raise CacheUnusableError(
                f"{readable_bytes(total)} are needed and data.cache_limit_mb allows {self.limit / MB:g} MB"
            )
        if shutil.disk_usage(self.folder).free < wanted:
            raise CacheUnusableError(f"{os.strerror(errno.ENOSPC)}: {readable_bytes(wanted)} are needed")

    def stored(self) -> list[StoredFile]:
        """All entries, the least recently used first."""
        return self._listed(f"*{_SUFFIX}")

    def _listed(self, pattern: str) -> list[StoredFile]:
        files = []
        for path in self.folder.glob(pattern):
            with suppress(OSError):  # gone meanwhile
                about = path.lstat()
                files.append(StoredFile(path, about.st_size, about.st_mtime))
        return sorted(files, key=lambda file: (file.last_use, file.path))

    def clear(self) -> tuple[int, int]:
        """Remove everything that nobody uses; gives the number of bytes, and of entries that stay."""
        self._tidy(forget_after=0)
        stored = self.stored()
        removed = [file for file in stored if remove_unused(file.path)]
        return sum(file.bytes for file in removed), len(stored) - len(removed)

    def _tidy(self, forget_after: float = _FORGOTTEN_AFTER) -> None:
        """Remove what killed processes left half done, and hashes of folders that nobody asks for any more."""
        for part in self.folder.glob(f".*{_SUFFIX}.part"):
            remove_unused(part)
        for notes in self.hashes.glob("*.json"):
            with suppress(OSError):
                if time.time() - notes.stat().st_mtime >= forget_after:
                    notes.unlink()

    def _take(self, name: str, say: Say) -> int | None:
        """A locked, empty file for an entry, or ``None`` if somebody else has made it."""
        part, waits = self._part(name), False
        while True:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # Whoever made the entry may use it, locked, for hours: once it has its name, nobody waits any more.
            while not try_exclusive_lock(descriptor) and _is_at(descriptor, part):
                if not waits:
                    say("waiting for another process that prepares the same images")
                waits = True
                time.sleep(_WAIT)
            if self.holds(name) and _is_at(descriptor, part):
                part.unlink()
            if not self.holds(name) and _is_at(descriptor, part):
                return descriptor
            os.close(descriptor)
            if self.holds(name):
                return None

    def _drop(self, name: str, descriptor: int) -> None:
        if _is_at(descriptor, self._part(name)):
            self._part(name).unlink(missing_ok=True)
        os.close(descriptor)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _part(self, name: str) -> Path:
        return self.folder / f".{name}{_SUFFIX}.part"


def remove_unused(path: Path) -> bool:
    """Remove a file unless a process uses or makes it."""
    try:
        with path.open("rb") as file:
            if not try_exclusive_lock(file.fileno()):
                return False
            if _is_at(file.fileno(), path):
                path.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _allow_more_files() -> bool:
    """Raise the number of files that this process may have open to what it may ask for; whether that helped."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True
