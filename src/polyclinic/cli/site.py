"""``polyclinic site``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.site_approve import approve

app = typer.Typer(invoke_without_command=True)
app.command()(approve)


@app.callback()
def site(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with NAME/images and NAME/labels, or with images and labels.")
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="HOST:PORT", help="Address of the coordinator.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The site's name, as the coordinator accepted it.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="The site's private key (polyclinic keys site).")] = None,
    ca: Annotated[Path | None, typer.Option("--ca", help="The federation's ca.crt, from the coordinator.")] = None,
    policy: Annotated[Path | None, typer.Option("--policy", help="The site's policy.toml: what may leave.")] = None,
    home: Annotated[
        Path | None,
        typer.Option("--home", help="Memory, audit log and logs. [default: ~/.local/state/polyclinic/NAME]"),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps. [default: auto]")] = None,
    encoder: Annotated[
        Path | None, typer.Option("--encoder", help="File of a pretrained encoder, for recipes that need one.")
    ] = None,
    case_pattern: Annotated[
        str | None,
        typer.Option(
            "--case-pattern",
            help="Regular expression whose first group is the case in an image's name. [default: federation.toml's]",
        ),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Hold prepared images in memory alone, never in HOME/cache.")
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No encryption, no key: anybody between can read and change everything.")
    ] = False,
    give_up: Annotated[
        float | None, typer.Option("--give-up", min=0, help="Stop after this many seconds of being turned away.")
    ] = None,
) -> None:
    """Take part in a federation: images stay here, the policy decides what may leave, every message is logged.

    Runs until it is stopped (Ctrl-C), and connects again whenever the coordinator is back.
    """
    if context.invoked_subcommand is not None:
        return
    from polyclinic.core.errors import PolyclinicError

    if data is None or server is None or name is None:
        missing = [option for option, given in (("--data", data), ("--server", server), ("--name", name)) if not given]
        raise PolyclinicError(f"Give {' and '.join(missing)}; polyclinic site --help says what they are.")
    if not insecure and (key is None or ca is None):
        raise PolyclinicError(
            "Give --key and --ca (polyclinic keys site makes the key, the coordinator has ca.crt), or --insecure to go "
            "without encryption."
        )
    if "://" in server:
        without = server.partition("://")[2].rstrip("/")
        raise PolyclinicError(
            f"--server {server}: expected HOST:PORT, without {server.partition('://')[0]}://; give {without or 'it'}."
        )
    host, _, port = server.rpartition(":")
    if not host or not (port.isdecimal() and 0 < int(port) < 65536):
        raise PolyclinicError(f"--server {server}: expected HOST:PORT, such as fed.example.org:8443.")
    from polyclinic.deploy.keys.key_folders import check_site_name
    from polyclinic.deploy.site.run_site import federation_of, run_site
    from polyclinic.deploy.site.server_connection import ServerConnection
    from polyclinic.deploy.site.settings import SiteSettings, default_home

    check_site_name(name)
    folder = (home or default_home(name)).expanduser().resolve()
    settings = SiteSettings(
        name, str(federation_of(data, name, folder)), str(folder), str(policy.resolve()) if policy else None, device,
        str(encoder.resolve()) if encoder else None, case_pattern, str(key.resolve()) if key and not insecure else None,
        cache="off" if no_cache else None,
    )  # fmt: skip
    connection = ServerConnection(server, None if insecure else key, None if insecure else ca)
    try:
        run_site(settings, connection, lambda text: typer.echo(text, err=True), give_up)
    except KeyboardInterrupt:
        typer.echo("Stopped. The site's memory is kept; start it again at any time.", err=True)
        raise typer.Exit(130) from None
