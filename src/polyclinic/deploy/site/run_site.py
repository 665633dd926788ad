"""``polyclinic site``: check the site's folder, keys and policy, then supervise its worker and its connection."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import make_folder
from polyclinic.core.locks import exclusive_lock
from polyclinic.core.log_file import LogFile
from polyclinic.data.layouts import looks_like_site
from polyclinic.data.open_federation import open_federation
from polyclinic.deploy.processes import require_flower
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings
from polyclinic.deploy.site.supervisor import SiteSupervisor
from polyclinic.federation.site_policy import load_policy
from polyclinic.recipe import DataSettings

_POLL_INTERVAL = 0.2


def federation_of(data: Path, name: str, home: Path) -> Path:
    """The federation folder of a site: ``data``, or a new one with a link if ``data`` is the site's own folder."""
    if not data.is_dir():
        raise PolyclinicError(f"{data}: no such folder; give the folder that holds {name}/images, or images itself.")
    if not looks_like_site(data):
        return data.resolve()
    _make_home(home)
    federation = home / "federation"
    make_folder(federation)
    link = federation / name
    if link.is_symlink():
        link.unlink()
    link.symlink_to(data.resolve(), target_is_directory=True)
    for file in ("federation.toml", "manifest.csv"):
        sources = [folder / file for folder in (data, data.resolve().parent) if (folder / file).is_file()]
        (federation / file).unlink(missing_ok=True)
        if sources:
            shutil.copyfile(sources[0], federation / file)
    return federation.resolve()


def check_site(settings: SiteSettings, connection: ServerConnection, log: Callable[[str], object]) -> None:
    """Log what this site is and what may leave it; raises if a key, the policy or the images are missing."""
    connection.check_files()
    policy = load_policy(Path(settings.policy) if settings.policy else None)
    if not (Path(settings.data) / settings.name).is_dir() and not settings.data.startswith("demo:"):
        raise PolyclinicError(
            f"{settings.data}: has no folder '{settings.name}'; name it as the site, or correct --name."
        )
    federation = open_federation(
        settings.data, DataSettings(sites=(settings.name,), case_pattern=settings.case_pattern)
    )
    items = federation.sites[settings.name]
    labelled = sum(item.label is not None for item in items)
    log(f"{settings.name}: {len(items)} images, {labelled} with a label, in {settings.data}")
    log(f"policy: {settings.policy or 'the defaults, because there is no --policy'}")
    for key, value in policy.model_dump().items():
        log(f"  {key} = {list(value) if isinstance(value, tuple) else value}")
    if policy.max_epsilon is not None:
        from polyclinic.deploy.site.privacy_ledger import spending_lines  # needs torch, which takes time to load

        for line in spending_lines(Path(settings.home), policy.max_epsilon):
            log(line)
    log(f"everything that leaves is listed in {Path(settings.home) / 'audit.jsonl'}")


def run_site(
    settings: SiteSettings, connection: ServerConnection, echo: Callable[[str], None], give_up: float | None = None
) -> None:
    """Run the site until it is interrupted; every line of its log goes to ``echo`` too."""
    require_flower()
    _require_device(settings.device)
    home = Path(settings.home)
    _make_home(home)
    taken = "another polyclinic site works in this home; stop it, or give another --home."
    with exclusive_lock(home, taken), LogFile(home / "site.log") as file:

        def log(text: str) -> None:
            echo(file.write(text))

        check_site(settings, connection, log)
        warning = "" if connection.key else " WITHOUT encryption and WITHOUT a key (--insecure)"
        log(f"connecting to {connection.server}{warning}")
        try:
            with SiteSupervisor(settings, connection, log, give_up) as supervisor:
                while True:
                    supervisor.poll()
                    time.sleep(_POLL_INTERVAL)
        finally:
            log("stopped")


def _make_home(home: Path) -> None:
    """Have a folder that nobody else can look into."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
    except OSError as error:
        raise PolyclinicError(
            f"--home {home}: cannot be made ({error.strerror or error}); give a folder that can be written."
        ) from error


def _require_device(name: str | None) -> None:
    """Say now, and not in every run, that there is no such device; without --device one that is there is taken."""
    if name in (None, "auto", "cpu"):
        return
    from polyclinic.core.machine import device_problem  # needs torch, which takes time to load

    if problem := device_problem(name):
        raise PolyclinicError(f"--device {name}: cannot be used here ({problem}); give cpu, or leave it out.")
