"""The case of an image, read in its name; a user's pattern is matched where it cannot hang this process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable

from polyclinic.core.errors import PolyclinicError

LONGEST_PATTERN = 200  # characters
LONGEST_NAME = 255  # characters, as file systems have it
TIME_LIMIT = 20.0  # seconds for all names; an honest pattern takes milliseconds, the rest is for a busy machine
_SLICE_NUMBER = re.compile(r"[_-](slice|s|z)\d+$")

# Matching holds the interpreter's lock and cannot be interrupted from another thread: only a process can be ended. Its
# alarm is for the case that nobody is left to end it.
_MATCH_ALL = """
import json, re, signal, sys
hasattr(signal, "alarm") and signal.alarm(60)
pattern, names = json.load(sys.stdin)
try:
    compiled = re.compile(pattern)
except (re.error, OverflowError, RecursionError) as error:
    answer = {"error": str(error)}
else:
    found = [compiled.search(name) for name in names] if compiled.groups else []
    answer = {"groups": compiled.groups, "cases": [match and match[1] for match in found]}
json.dump(answer, sys.stdout)
"""


def case_names(pattern: str | None, names: Iterable[str]) -> dict[str, str]:
    """The case of each image by its name: the pattern's first group, else the name without a slice number."""
    unique = sorted(set(names))
    if pattern is None:
        return {name: _SLICE_NUMBER.sub("", name) for name in unique}
    if len(pattern) > LONGEST_PATTERN:
        raise PolyclinicError(
            f"case_pattern: a regular expression of {len(pattern)} characters is not tried, the most are "
            f"{LONGEST_PATTERN}; write a shorter one, or a manifest.csv with the column case."
        )
    long = next((name for name in unique if len(name) > LONGEST_NAME), None)
    if long is not None:
        raise PolyclinicError(
            f"case_pattern: is not tried on names of more than {LONGEST_NAME} characters, such as '{long}'; rename it."
        )
    cases = _matched(pattern, unique)
    for name, case in zip(unique, cases, strict=True):
        if not case:
            raise PolyclinicError(f"case_pattern: '{pattern}' does not match the image '{name}'; extend the pattern.")
    return {name: str(case) for name, case in zip(unique, cases, strict=True)}


def _matched(pattern: str, names: list[str]) -> list[str | None]:
    """The first group of the pattern in each name, from a process of its own that is ended after a while."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _MATCH_ALL],
            input=json.dumps([pattern, names]).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=TIME_LIMIT, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PolyclinicError(
            f"case_pattern: '{pattern}' is still not matched after {TIME_LIMIT:g} seconds; write it without a repeated "
            "group that holds a repetition, such as (a+)+."
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        raise PolyclinicError(
            f"case_pattern: '{pattern}' cannot be tried ({type(error).__name__}); simplify it."
        ) from error
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise PolyclinicError(f"case_pattern: '{pattern}' is not a regular expression ({answer['error']}); correct it.")
    if answer["groups"] < 1:
        raise PolyclinicError(
            f"case_pattern: '{pattern}' has no group; put brackets around the part that names the case."
        )
    return list(answer["cases"])
