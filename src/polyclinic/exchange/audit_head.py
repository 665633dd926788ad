"""The head of an audit log, ``audit.head.json``: number of lines and hash of the last one, signed with the site's key.

The chain of the log finds a line that was changed or taken out in the middle; the head finds an end that was cut off or
a last line that was edited. It is written after each line, so that a kill in between leaves one line more than the head
says, and never two: before another line is added, the head catches up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import sync_folder, write_json

CHAIN_START = "0" * 64
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
HeadState = Literal["whole", "one line more", "without head"]


class Signer(Protocol):
    """Signs with a site's private key."""

    def sign(self, data: bytes) -> tuple[str, str]:
        """The line of the public key, and the signature in base64."""
        ...


class Head(BaseModel):
    """Where a log ends; without a key ``public`` and ``signature`` are ``None``."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    lines: Annotated[int, Field(ge=0)]
    last: Sha256
    time: str
    public: str | None = None
    signature: str | None = None

    def signed_bytes(self) -> bytes:
        """What the signature is of."""
        return f"polyclinic audit head\n{self.lines}\n{self.last}\n{self.time}\n".encode()


def head_path(log: Path) -> Path:
    """The head's file, beside the log."""
    return log.with_name(f"{log.stem}.head.json")


def line_hash(line: bytes) -> str:
    """SHA-256 of a line without its end."""
    return hashlib.sha256(line).hexdigest()


def write_head(log: Path, lines: int, last: str, signer: Signer | None) -> None:
    """Anchor the end of a log."""
    head = Head(lines=lines, last=last, time=datetime.now(UTC).isoformat(timespec="seconds"))
    if signer is not None:
        public, signature = signer.sign(head.signed_bytes())
        head = head.model_copy(update={"public": public, "signature": signature})
    write_json(head_path(log), head.model_dump())
    with suppress(PolyclinicError):  # the head is in place; what the power takes with it, the next line brings back
        sync_folder(log.parent)


def read_head(log: Path) -> Head | None:
    """The head of a log, or ``None`` where there is none."""
    path = head_path(log)
    try:
        return Head.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise PolyclinicError(f"{path}: is damaged; keep it and {log.name}, and find out why.") from error


def check_head(log: Path, lines: Sequence[bytes], head: Head | None) -> HeadState:
    """Whether a log ends where its head says; raises with a sentence if it was cut off or its end was changed."""
    count, name = len(lines), head_path(log).name
    advice = "keep both files and find out why"
    if head is None:
        if count > 1 and _is_anchored(lines[-2]):
            raise PolyclinicError(
                f"{log}: its head {name} is missing, so lines may have been cut off; put it back beside the log, or "
                "find out why it is gone."
            )
        return "one line more" if count and _is_anchored(lines[-1]) else "without head"
    ends = [CHAIN_START, *(line_hash(line) for line in lines[-2:])]
    if head.lines == count and head.last == ends[-1]:
        return "whole"
    if head.lines == count - 1 and head.last == ends[-2]:
        return "one line more"
    if head.lines > count:
        raise PolyclinicError(
            f"{log}: has {count} lines where {name} counts {head.lines}, so its end was cut off; {advice}."
        )
    if head.lines == count:
        raise PolyclinicError(f"{log}: its last line is not the one that {name} knows, so it was changed; {advice}.")
    raise PolyclinicError(
        f"{log}: has {count} lines where {name} counts {head.lines}, so the head is an older one or lines were added; "
        f"{advice}."
    )


def _is_anchored(line: bytes) -> bool:
    """Whether a line was written together with a head: those of older versions have no number."""
    try:
        return "line" in json.loads(line)
    except (ValueError, TypeError):
        return True
