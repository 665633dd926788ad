"""The folders of keys: the server's TLS certificate and the accepted sites, and the key pair of each site.

The coordinator keeps a folder (:class:`ServerKeys`) with a certificate authority, the server's certificate and the
public keys of the sites that may take part. A private key is made where it is used and never leaves: the site sends
its public key, the coordinator sends ``ca.crt``. The files are what Flower's SuperLink and SuperNode read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import write_private, write_text

SERVER_DAYS = 825
ALWAYS_HOSTS = ("localhost", "127.0.0.1")  # the coordinator's own commands talk to the server from beside it
# As folders of sites are named: those that start with a dot or an underscore are no sites in data/federation.py either.
_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ServerKeys:
    """The coordinator's folder and the names of its files."""

    folder: Path

    @property
    def ca_cert(self) -> Path:
        """The authority's certificate, which every site gets."""
        return self.folder / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """The authority's private key; only :func:`make_server_keys` needs it."""
        return self.folder / "ca.key"

    @property
    def cert(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.folder / "server.key"

    @property
    def sites(self) -> Path:
        """The folder of the accepted sites' public keys."""
        return self.folder / "sites"


@dataclass(frozen=True)
class ServerKeysReport:
    """What :func:`make_server_keys` did."""

    keys: ServerKeys
    new_authority: bool
    renewed: bool
    hosts: tuple[str, ...]
    expires: datetime


def make_server_keys(folder: Path, hosts: Sequence[str], days: int = SERVER_DAYS) -> ServerKeysReport:
    """Make the server's key and certificate for ``hosts``, and the authority if the folder has none.

    Called again it makes a new key and certificate with the same authority, so that sites keep their ``ca.crt``.
    """
    from polyclinic.deploy.keys import certificates

    if days < 1:
        raise PolyclinicError(f"--days: {days} is too few; a certificate lasts at least 1 day.")
    names = certificates.host_names([*hosts, *ALWAYS_HOSTS])
    keys = ServerKeys(folder)
    present = [path for path in (keys.ca_cert, keys.ca_key) if exists(path)]
    if len(present) == 1:
        (missing,) = {keys.ca_cert, keys.ca_key} - set(present)
        raise PolyclinicError(
            f"{missing}: is missing beside {present[0].name}; put it back from a copy, or give a new folder and send "
            "its ca.crt to every hospital."
        )
    if present:
        authority = certificates.read_authority(keys.ca_cert, keys.ca_key)
    else:
        authority = certificates.new_authority()
        write_private(keys.ca_key, certificates.private_pem(authority.key))
        write_text(keys.ca_cert, certificates.pem(authority.certificate))
    renewed = exists(keys.cert)
    key, certificate = certificates.server_certificate(authority, names, days)
    write_private(keys.key, certificates.private_pem(key))
    write_text(keys.cert, certificates.pem(certificate))
    hosts_in_certificate, expires = certificates.hosts_of(certificate), certificate.not_valid_after_utc
    return ServerKeysReport(keys, not present, renewed, hosts_in_certificate, expires)


def make_site_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a site's private and public key, ``NAME.key`` and ``NAME.pub``, as ``ssh-keygen -t ecdsa -b 384`` does."""
    check_site_name(name)
    secret, public = folder / f"{name}.key", folder / f"{name}.pub"
    for path in (secret, public):
        if exists(path):
            raise PolyclinicError(
                f"{path}: is already there and is never overwritten; use that key, or give another folder with --out."
            )
    from polyclinic.deploy.keys.public_keys import new_pair

    data, key = new_pair()
    write_private(secret, data)
    write_text(public, f"{key.line} {name}\n")
    return secret, public


def accept(folder: Path, public: Path, replace: bool = False) -> str:
    """List the site of this public key under the file's name; ``replace`` takes another key for a listed name."""
    from polyclinic.deploy.keys.public_keys import read_public_key

    if not folder.is_dir():
        raise PolyclinicError(f"{folder}: no such folder; make it with 'polyclinic keys server {folder} --host NAME'.")
    key = read_public_key(public)
    if public.suffix != ".pub":
        raise PolyclinicError(f"{public}: the file's name says which site it is; rename it to NAME.pub.")
    name = check_site_name(public.stem)
    for other, path in accepted(folder).items():
        same = read_public_key(path).line == key.line
        if same and other == name:
            return name
        if same:
            raise PolyclinicError(
                f"{public}: is the key that is already listed as '{other}'; every site needs a key of its own, or "
                f"remove '{other}' first."
            )
        if other == name and not replace:
            raise PolyclinicError(
                f"{public}: '{name}' is already listed with another key ({path}); ask the hospital which is right, "
                "then add --replace."
            )
    # Only the key is copied: the comment of the file may name a person.
    write_text(ServerKeys(folder).sites / f"{name}.pub", f"{key.line} {name}\n")
    return name


def accepted(folder: Path) -> dict[str, Path]:
    """Names of the listed sites and their public key files, by name."""
    files = ServerKeys(folder).sites.glob("*.pub")
    return {path.stem: path for path in sorted(files, key=lambda path: path.stem) if not path.name.startswith(".")}


def remove(folder: Path, name: str) -> None:
    """Take a site off the list."""
    listed = accepted(folder)
    if name not in listed:
        # All names instead of the closest: 'north' is close to 'south', and this removes a site.
        known = f"listed are {', '.join(listed)}" if listed else "none is listed"
        raise PolyclinicError(f"{ServerKeys(folder).sites}: has no site '{name}'; {known}.")
    try:
        listed[name].unlink()
    except OSError as error:
        raise PolyclinicError(f"{listed[name]}: cannot be removed ({error.strerror}); remove it by hand.") from error


def make_demo_keys(folder: Path, sites: Sequence[str], hosts: Sequence[str]) -> ServerKeys:
    """All keys at once, for trials: the coordinator's in ``server``, each site's in ``hospitals/NAME``."""
    for name in sites:
        check_site_name(name)
        if sites.count(name) > 1:
            raise PolyclinicError(f"--sites: '{name}' is there twice; every site needs a name of its own.")
    if exists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise PolyclinicError(f"{folder}: is not empty; give a new folder for the demo's keys.")
    keys = make_server_keys(folder / "server", hosts).keys
    for name in sites:
        site_folder = folder / "hospitals" / name
        _, public = make_site_key(site_folder, name)
        write_text(site_folder / "ca.crt", keys.ca_cert.read_text(encoding="utf-8"))
        accept(keys.folder, public)
    return keys


def exists(path: Path) -> bool:
    """Whether there is such a file; raises where permissions do not let us see."""
    try:
        return path.exists()
    except OSError as error:
        raise PolyclinicError(f"{path}: cannot be read ({error.strerror}); ask its owner, or sudo.") from error


def check_site_name(name: str) -> str:
    """The name, if a site may have it."""
    if not _SITE_NAME.fullmatch(name):
        raise PolyclinicError(
            f"'{name}' is no name of a site; use up to 64 letters (a-z), digits and . _ -, and start with a "
            "letter or digit."
        )
    return name
