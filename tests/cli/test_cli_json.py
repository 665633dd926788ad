"""Every command that prints a table prints it as JSON, too."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
import pytest
import typer

from polyclinic.cli import app

# Commands that print no table, and what they print instead.
NO_TABLE = {
    "site": "runs until it is stopped, and says on stderr what it does",
    "data demo": "two sentences: what was written, and what to do next",
    "keys server": "sentences about the files that were made",
    "keys site": "sentences about the files that were made, with a fingerprint",
    "keys accept": "a sentence for each accepted key",
    "keys remove": "a sentence",
    "keys demo": "a sentence for each folder that was made",
}
# How a command comes to a table: rich's, or a function or method that prints one.
TABLE = re.compile(r"\bTable\(|\bprint_\w+\(|\b_print\w*\(|\.show\(\)")


def _commands(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    if command.invoke_without_command and name:
        yield name, command
    for word, inner in command.commands.items():
        yield from _commands(inner, f"{name} {word}".strip())


COMMANDS = dict(_commands(typer.main.get_command(app)))


def _has_json(command: click.Command) -> bool:
    return any("--json" in option.opts for option in command.params)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_json_or_a_reason(name: str) -> None:
    assert _has_json(COMMANDS[name]) or name in NO_TABLE, (
        f"polyclinic {name} has no --json; add it (JsonOption), or say in NO_TABLE what it prints instead of a table."
    )


@pytest.mark.parametrize("name", [name for name in NO_TABLE if name in COMMANDS])
def test_a_command_with_a_reason_prints_no_table(name: str) -> None:
    callback = COMMANDS[name].callback
    assert callback is not None
    assert not TABLE.search(inspect.getsource(inspect.unwrap(callback))), f"polyclinic {name} prints a table"


def test_a_table_would_be_found() -> None:
    """In commands that are known to print one; otherwise the test above could not fail."""
    for name in ("run", "methods", "study", "ablate", "cost", "keys list", "site approve"):
        callback = COMMANDS[name].callback
        assert callback is not None
        assert TABLE.search(inspect.getsource(inspect.unwrap(callback))), name
