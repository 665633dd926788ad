"""Approved recipes: a site's policy may list the fingerprints of those that it has looked at; no other then runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import atomic_write
from polyclinic.federation.site_policy import load_policy

_LIST_START = re.compile(r"""^[ \t]*["']?recipes["']?[ \t]*=[ \t]*\[""", re.MULTILINE)


def approve_recipe(policy: Path, sha256: str) -> bool:
    """Add a fingerprint to the list ``recipes`` of a policy file; ``False`` if it is there.

    The rest of the file stays as it is, comments too. What was written is read again before it takes the file's place.
    """
    if sha256 in load_policy(policy).recipes:
        return False
    path = policy.resolve()  # a link stays a link
    before = path.read_bytes().decode("utf-8")
    wanted = tomllib.loads(before)
    wanted["recipes"] = [*wanted.get("recipes", []), sha256]
    text = next((text for text in _candidates(before, sha256) if _reads_as(text, wanted)), None)
    if text is None:
        raise PolyclinicError(f'{policy}: its list of recipes cannot be extended; add "{sha256}" by hand.')
    with atomic_write(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))
        temporary.chmod(path.stat().st_mode & 0o7777)
        load_policy(temporary)
    return True


def _candidates(text: str, sha256: str) -> Iterator[str]:
    """Ways to write the file; a list may hold comments and brackets in them, so every closing one is tried."""
    start = _LIST_START.search(text)
    if start is None:
        end = "" if not text or text.endswith("\n") else "\n"
        comment = "# Recipes that may run here, and no others: added by polyclinic site approve."
        yield f'{text}{end}\n{comment}\nrecipes = [\n    "{sha256}",\n]\n'
        return
    for closing in (match.start() for match in re.finditer(r"\]", text[start.end() :])):
        inside, rest = text[start.end() : start.end() + closing], text[start.end() + closing :]
        for entry in (f'    "{sha256}",\n', f'"{sha256}"', f', "{sha256}"'):
            if entry.endswith("\n") and not inside.endswith("\n"):
                continue
            yield text[: start.end()] + inside + entry + rest


def _reads_as(text: str, wanted: dict[str, object]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
