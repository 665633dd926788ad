"""``polyclinic keys``: certificates and key pairs for a federation over a network."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from polyclinic.cli.options import JsonOption
from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.keys.key_folders import (
    SERVER_DAYS,
    ServerKeys,
    accepted,
    exists,
    make_demo_keys,
    make_server_keys,
    make_site_key,
)
from polyclinic.deploy.keys.key_folders import accept as accept_key
from polyclinic.deploy.keys.key_folders import remove as remove_key

app = typer.Typer(
    help="Keys for a federation over a network: who the server is, and who may join.", no_args_is_help=True
)

_WARN_DAYS = 30

FolderArgument = Annotated[
    Path, typer.Argument(metavar="SERVER_FOLDER", help="The coordinator's folder of keys.", show_default=False)
]
_HOST_HELP = "The server's DNS name or IP address as the hospitals see it; several with commas."


@app.command()
def server(
    folder: Annotated[Path, typer.Argument(help="The coordinator's folder of keys.", show_default=False)],
    host: Annotated[str, typer.Option(metavar="NAME_OR_IP[,...]", help=_HOST_HELP, show_default=False)],
    days: Annotated[int, typer.Option(min=1, help="How long the server's certificate lasts.")] = SERVER_DAYS,
) -> None:
    """Make the server's certificate, and its certificate authority if there is none yet.

    Run it again to renew the server's certificate: the authority stays, and hospitals have nothing to change.
    """
    report = make_server_keys(folder, host.split(","), days)
    keys = report.keys
    if report.new_authority:
        typer.echo(f"Made the certificate authority {keys.ca_cert}. Keep a copy of {keys.ca_key} in a safe place.")
    else:
        typer.echo(f"Kept the certificate authority {keys.ca_cert}.")
    verb = "Renewed" if report.renewed else "Made"
    typer.echo(
        f"{verb} the server's certificate {keys.cert}, until {report.expires:%Y-%m-%d}, for {', '.join(report.hosts)}."
    )
    if report.renewed:
        typer.echo("Restart the server to use it.")
    else:
        typer.echo(f"Next: send {keys.ca_cert} to every hospital. All .key files stay here.")


@app.command()
def site(
    name: Annotated[str, typer.Argument(help="The site's name: letters, digits and . _ -", show_default=False)],
    out: Annotated[Path, typer.Option(help="The hospital's folder of keys.")] = Path("keys"),
) -> None:
    """Make a site's key pair. Run this at the hospital."""
    from polyclinic.deploy.keys.public_keys import read_public_key

    secret, public = make_site_key(out, name)
    typer.echo(f"Made {secret}, which never leaves the hospital, and {public}.")
    typer.echo(f"Fingerprint: {read_public_key(public).fingerprint}")
    typer.echo(f"Next: send {public} to the coordinator, and read the fingerprint to them, for example by telephone.")


@app.command()
def accept(
    folder: FolderArgument,
    public: Annotated[list[Path], typer.Argument(metavar="NAME.pub...", help="Public keys.", show_default=False)],
    replace: Annotated[bool, typer.Option("--replace", help="Take another key for a name that is listed.")] = False,
) -> None:
    """List sites by their public keys, so that they may take part."""
    from polyclinic.deploy.keys.public_keys import read_public_key

    for path in public:
        name = accept_key(folder, path, replace)
        fingerprint = read_public_key(ServerKeys(folder).sites / f"{name}.pub").fingerprint
        typer.echo(f"Accepted {name}, {fingerprint}")


@app.command()
def remove(
    folder: FolderArgument, name: Annotated[str, typer.Argument(help="A listed site.", show_default=False)]
) -> None:
    """Take a site off the list."""
    remove_key(folder, name)
    typer.echo(f"Removed {name}. A server that runs still knows the key; stop it and go on with --resume.")


@app.command("list")
def list_keys(folder: FolderArgument, json_output: JsonOption = False) -> None:
    """Show the listed sites with their fingerprints, and how long the certificates last."""
    from rich.console import Console
    from rich.table import Table

    from polyclinic.deploy.keys.public_keys import read_public_key

    keys = ServerKeys(folder)
    certificates = [_certificate(path) for path in (keys.ca_cert, keys.cert) if exists(path)]
    public = {name: read_public_key(path) for name, path in accepted(folder).items()}
    if not certificates and not public:
        raise PolyclinicError(f"{folder}: has no keys; make them with 'polyclinic keys server {folder} --host NAME'.")
    warnings = _warnings(keys, certificates)
    if json_output:
        sites = [{"name": name, "curve": key.curve, "fingerprint": key.fingerprint} for name, key in public.items()]
        typer.echo(json.dumps({"certificates": certificates, "sites": sites, "warnings": warnings}, indent=2))
        return
    console = Console(highlight=False, markup=False)
    for certificate in certificates:
        hosts = f", for {', '.join(certificate['hosts'])}" if certificate["hosts"] else ""
        until = f"until {certificate['expires'][:10]}, {certificate['days_left']} days left{hosts}"
        console.print(f"{certificate['file']}: {until}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("site", overflow="fold", min_width=8)
    table.add_column("curve", no_wrap=True)
    table.add_column("fingerprint", no_wrap=True)
    for name, key in public.items():
        table.add_row(name, key.curve, key.fingerprint)
    console.print(table if public else "No site is listed yet: polyclinic keys accept")
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.", show_default=False)],
    sites: Annotated[str, typer.Option(help="Names of sites, separated by commas.")] = "north,south",
    host: Annotated[str, typer.Option(metavar="NAME_OR_IP[,...]", help=_HOST_HELP)] = "127.0.0.1",
) -> None:
    """Make all keys of a federation on one machine, for trials."""
    names = [name.strip() for name in sites.split(",")]
    keys = make_demo_keys(folder, names, host.split(","))
    typer.echo(f"Made the coordinator's keys in {keys.folder}.")
    for name in names:
        typer.echo(f"Made and accepted the keys of {name} in {folder / 'hospitals' / name}.")
    typer.echo("For trials only: in a real federation each hospital makes its own key with 'polyclinic keys site'.")


def _certificate(path: Path) -> dict[str, Any]:
    from polyclinic.deploy.keys.certificates import hosts_of, read_certificate

    certificate = read_certificate(path)
    expires = certificate.not_valid_after_utc
    left = (expires - datetime.now(UTC)).days
    return {"file": str(path), "expires": expires.isoformat(), "days_left": left, "hosts": list(hosts_of(certificate))}


def _warnings(keys: ServerKeys, certificates: list[dict[str, Any]]) -> list[str]:
    warnings = []
    for certificate in certificates:
        file, days = certificate["file"], certificate["days_left"]
        if days >= _WARN_DAYS:
            continue
        when = "has expired" if days < 0 else f"expires in {days} days"
        advice = "renew it with 'polyclinic keys server'"
        if file == str(keys.ca_cert):
            advice = "make the keys in a new folder and send its ca.crt to every hospital"
        warnings.append(f"{file} {when}; {advice}.")
    for path in (keys.ca_key, keys.key):
        if os.name == "posix" and path.exists() and path.stat().st_mode & 0o077:
            warnings.append(f"{path} can be read by others; run: chmod 600 {path}")
    return warnings
