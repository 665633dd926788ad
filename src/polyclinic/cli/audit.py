"""``polyclinic audit``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import JsonOption

_LONGEST_METHOD = 30


def audit(
    log: Annotated[Path, typer.Argument(metavar="AUDIT_LOG", help="A site's audit.jsonl, or its home folder.")],
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor with its shape and SHA-256.")] = False,
    privacy: Annotated[
        bool, typer.Option("--privacy", help="Show the ledger of privacy in a home folder instead: what was spent.")
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="The site's public key, NAME.pub: the log's head must be signed with it."),
    ] = None,
    receipts: Annotated[
        Path | None, typer.Option("--receipts", help="The coordinator's receipts.jsonl, to compare the log with.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Show what has left a site, and check that no line of the log was changed or taken out."""
    if privacy:
        _show_privacy(log if log.is_dir() else log.parent, json_output)
        return
    from rich.console import Console
    from rich.table import Table

    from polyclinic.exchange.audit import end_of_chain, read_audit

    file = log / "audit.jsonl" if log.is_dir() else log
    entries = list(read_audit(file))
    findings = [_check_head(file, key)]
    if receipts is not None:
        findings.append(_check_receipts(file, {entry["plain"].get("site", "") for entry in entries}, receipts))
    if json_output:
        typer.echo(json.dumps(entries))
        return
    table = Table(box=None, header_style="bold")
    for column in ("time", "run", "part", "round", "method", "what", "tensors", "bytes"):
        table.add_column(column, no_wrap=True)
    for entry in entries:
        number = "" if entry["round"] is None or entry["round"] < 0 else str(entry["round"] + 1)
        when = entry["time"][:19].replace("T", " ")
        count, size = str(len(entry["tensors"])), f"{entry['bytes']:,}"
        method = _shown(entry.get("method") or "")
        table.add_row(when, entry["run"], entry["part"], number, method, entry["kind"], count, size)
        if tensors:
            for tensor in entry["tensors"]:
                shape = "x".join(map(str, tensor["shape"])) or "scalar"
                table.add_row(
                    "", "", "", "", "", f"  {tensor['name']}", shape, f"{tensor['bytes']:,} {tensor['sha256']}"
                )
    # Whole numbers and hashes, also in a pipe or a narrow window: a line may then be broken, but nothing is cut off.
    Console(highlight=False, width=max(Console().width, 220 if tensors else 110)).print(table)
    total = sum(entry["bytes"] for entry in entries)
    typer.echo(f"{len(entries)} messages, {total:,} bytes; the chain of the log is whole.")
    if entries:
        for finding in findings:
            typer.echo(finding)
        typer.echo(f"It ends with {end_of_chain(file)}; kept elsewhere, that shows whether lines were cut off later.")


def _shown(method: str) -> str:
    """A method's name for a column, as harmless text: a server may have sent anything. The JSON has all of it."""
    from rich.markup import escape

    plain = "".join(letter for letter in method if letter.isprintable())
    return escape(plain if len(plain) <= _LONGEST_METHOD else f"{plain[: _LONGEST_METHOD - 3]}...")


def _check_head(file: Path, key: Path | None) -> str:
    """What the head says of a log, in a sentence; raises where its signature is wrong, or is missing beside a key."""
    from polyclinic.core.errors import PolyclinicError
    from polyclinic.exchange.audit import head_of
    from polyclinic.exchange.audit_head import head_path

    head, state = head_of(file)
    name = head_path(file).name
    if head is None or head.public is None or head.signature is None:
        if key is not None:
            raise PolyclinicError(f"{head_path(file)}: is not signed with {key}; find out who wrote it.")
        if head is None:
            when = "yet, as after a kill" if state == "one line more" else "because the log is of an older version"
            return f"It has no {name} {when}, so an end that was cut off cannot be found."
        signed = "is not signed, because the site had no key: who can write the log can write it too"
    else:
        from polyclinic.deploy.keys.public_keys import fingerprint_of, read_public_key
        from polyclinic.deploy.keys.signatures import is_signature

        if not is_signature(head.public, head.signed_bytes(), head.signature):
            raise PolyclinicError(f"{head_path(file)}: its signature is wrong; keep both files and find out why.")
        if key is not None and read_public_key(key).line != head.public:
            raise PolyclinicError(f"{head_path(file)}: is signed with another key than {key}; find out whose it is.")
        check = "" if key is not None else ", which --key NAME.pub would compare"
        signed = f"is signed with the key {fingerprint_of(head.public)}{check}"
    more = " The log has one line more, as after a kill." if state == "one line more" else ""
    return f"Its head, {name}, counts {head.lines} lines and {signed}.{more}"


def _check_receipts(file: Path, sites: set[str], receipts: Path) -> str:
    """That a log is the one that the coordinator has receipts of, in a sentence; raises if it is not."""
    from polyclinic.core.errors import PolyclinicError
    from polyclinic.exchange.audit import line_hashes
    from polyclinic.exchange.receipts import read_receipts, receipts_problem

    source = receipts / "receipts.jsonl" if receipts.is_dir() else receipts
    given = {site: found for site, found in read_receipts(source).items() if site in sites}
    if not given:
        raise PolyclinicError(
            f"{source}: has no receipt of {', '.join(sorted(sites)) or 'an empty log'}; ask for another."
        )
    for found in given.values():
        problem = receipts_problem(line_hashes(file), found)
        if problem is not None:
            raise PolyclinicError(f"{file}: {problem}; keep it and {source}, and find out why.")
    return f"{sum(map(len, given.values()))} receipts of the coordinator agree with it."


def _show_privacy(home: Path, json_output: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from polyclinic.deploy.site.privacy_ledger import PrivacyLedger, spending_lines

    releases = PrivacyLedger(home).releases()
    if json_output:
        typer.echo(json.dumps([release.model_dump() for release in releases]))
        return
    table = Table(box=None, header_style="bold")
    for column in ("time", "run", "part", "round", "noise", "recipe"):
        table.add_column(column, no_wrap=True)
    for one in releases:
        when, number = one.time[:19].replace("T", " "), "" if one.round is None else str(one.round + 1)
        noise = "unknown" if one.noise is None else f"{one.noise:g}"
        table.add_row(when, one.run, one.part, number, noise, one.recipe[:12])
    Console(highlight=False, width=max(Console().width, 110)).print(table)
    for line in spending_lines(home, None) or ["privacy: no update with noise has left"]:
        typer.echo(line)
