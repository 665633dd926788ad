"""``polyclinic site``: check what the hospital gave, then look after its worker and its connection."""

from __future__ import annotations

import os
import shutil
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.locks import exclusive_lock
from polyclinic.data.layouts import looks_like_site
from polyclinic.data.open_federation import open_federation
from polyclinic.deploy.processes import require_flower
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import ServerConnection, SiteSupervisor
from polyclinic.federation.policy import load_policy
from polyclinic.recipe import DataSettings


def federation_of(data: Path, name: str, home: Path) -> Path:
    """The federation folder of a site: the given one, or one around a folder that is the site itself."""
    if not data.is_dir():
        raise PolyclinicError(f"{data}: no such folder; give the folder that holds {name}/images, or images itself.")
    if not looks_like_site(data):
        return data.resolve()
    around = home / "federation"
    around.mkdir(parents=True, exist_ok=True)
    link = around / name
    if link.is_symlink():
        link.unlink()
    link.symlink_to(data.resolve(), target_is_directory=True)
    for file in ("federation.toml", "manifest.csv"):
        found = [folder / file for folder in (data, data.resolve().parent) if (folder / file).is_file()]
        (around / file).unlink(missing_ok=True)
        if found:
            shutil.copyfile(found[0], around / file)
    return around.resolve()


def check_site(settings: SiteSettings, line: ServerConnection, say: Callable[[str], None]) -> None:
    """Say what this site is and what may leave it; stop where something is missing."""
    for file, what in ((line.key, "key"), (line.ca, "ca")):
        if file is not None and not file.is_file():
            raise PolyclinicError(f"{file}: no such file; give the site's --{what}.")
    if line.key is not None and not line.key.read_bytes().startswith(b"-----BEGIN "):
        raise PolyclinicError(f"{line.key}: not a private key; give NAME.key, which polyclinic keys site made.")
    if line.ca is not None:
        try:
            ssl.create_default_context(cafile=line.ca)
        except ssl.SSLError as error:
            raise PolyclinicError(f"{line.ca}: not a PEM certificate; expected the coordinator's ca.crt.") from error
    if line.key is not None and line.key.stat().st_mode & 0o077 and os.name == "posix":
        raise PolyclinicError(f"{line.key}: others can read this private key; run: chmod 600 {line.key}")
    policy = load_policy(Path(settings.policy) if settings.policy else None)
    if not (Path(settings.data) / settings.name).is_dir() and not settings.data.startswith("demo:"):
        raise PolyclinicError(
            f"{settings.data}: has no folder '{settings.name}'; name it as the site, or correct --name."
        )
    federation = open_federation(settings.data, DataSettings(sites=(settings.name,)))
    items = federation.sites[settings.name]
    labelled = sum(item.label is not None for item in items)
    say(f"{settings.name}: {len(items)} images, {labelled} with a label, in {settings.data}")
    say(f"policy: {settings.policy or 'the defaults, because there is no --policy'}")
    for key, value in policy.model_dump().items():
        say(f"  {key} = {list(value) if isinstance(value, tuple) else value}")
    say(f"everything that leaves is listed in {Path(settings.home) / 'audit.jsonl'}")


def run_site(
    settings: SiteSettings, line: ServerConnection, echo: Callable[[str], None], give_up: float | None = None
) -> None:
    """Run the site until it is interrupted."""
    require_flower()
    home = Path(settings.home)
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    taken = "another polyclinic site works in this home; stop it, or give another --home."
    with exclusive_lock(home, taken), (home / "site.log").open("a", encoding="utf-8") as log:

        def say(text: str) -> None:
            stamped = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
            log.write(stamped + "\n")
            log.flush()
            echo(stamped)

        check_site(settings, line, say)
        say(f"connecting to {line.server}" + ("" if line.key else " WITHOUT encryption and WITHOUT a key (--insecure)"))
        try:
            with SiteSupervisor(settings, line, say, give_up) as hospital:
                while True:
                    hospital.look()
                    time.sleep(0.2)
        finally:
            say("stopped")
