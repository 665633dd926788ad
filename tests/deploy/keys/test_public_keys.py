"""Public keys: what OpenSSH makes of them, and which files are none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.keys.key_folders import (
    ServerKeys,
    accept,
    accepted,
    make_site_key,
)
from polyclinic.deploy.keys.public_keys import read_public_key

needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed here")


@needs_ssh_keygen
def test_openssh_reads_the_pair_and_gives_the_same_fingerprint(tmp_path: Path) -> None:
    def ssh_keygen(*arguments: object) -> str:
        return subprocess.run(["ssh-keygen", *map(str, arguments)], capture_output=True, text=True, check=True).stdout

    secret, public = make_site_key(tmp_path, "north")
    assert ssh_keygen("-lf", public).split() == ["384", read_public_key(public).fingerprint, "north", "(ECDSA)"]
    assert ssh_keygen("-y", "-f", secret).split()[:2] == public.read_text().split()[:2]
    for bits in (256, 384, 521):
        ssh_keygen("-q", "-t", "ecdsa", "-b", bits, "-N", "", "-f", tmp_path / f"p{bits}", "-C", "dr.who@example.org")
        assert accept(tmp_path, tmp_path / f"p{bits}.pub") == f"p{bits}"
        listed = accepted(tmp_path)[f"p{bits}"]
        assert read_public_key(listed).curve == f"P-{bits}"
        assert listed.read_text().split()[2] == f"p{bits}", "the comment, which may name a person, stays behind"


def test_what_is_no_sites_public_key_is_not_accepted(tmp_path: Path, keys: ServerKeys) -> None:
    secret, public = make_site_key(tmp_path, "north")
    ed25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl someone\n"
    for name, data, sentence in (
        ("secret.pub", secret.read_bytes(), "is a private key, which never leaves its hospital"),
        ("tls.pub", keys.key.read_bytes(), "is a private key"),
        ("cert.pub", keys.cert.read_bytes(), "not an OpenSSH public key"),
        ("empty.pub", b"", "not an OpenSSH public key"),
        ("binary.pub", bytes(range(256)), "not an OpenSSH public key"),
        ("cut.pub", public.read_bytes()[:90], "not an OpenSSH public key"),
        ("ed.pub", ed25519.encode(), "is a key of kind ssh-ed25519"),
        ("north.txt", public.read_bytes(), "rename it to NAME.pub"),
        ("no site.pub", public.read_bytes(), "is no name of a site"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(PolyclinicError, match=sentence):
            accept(keys.folder, tmp_path / name)
    with pytest.raises(PolyclinicError, match=r"absent.pub: cannot be read"):
        accept(keys.folder, tmp_path / "absent.pub")
    assert accepted(keys.folder) == {}
