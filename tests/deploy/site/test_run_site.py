"""What ``polyclinic site`` checks before it connects."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.deploy.site.run_site import check_site, federation_of
from polyclinic.deploy.site.server_connection import ServerConnection
from polyclinic.deploy.site.settings import SiteSettings


def test_files_that_are_neither_key_nor_certificate_get_a_sentence(keys: Path, tmp_path: Path) -> None:
    site_keys = keys / "ours" / "hospitals" / "north"
    settings = SiteSettings("north", str(tmp_path), str(tmp_path))
    with pytest.raises(PolyclinicError, match=r"north\.pub: not a private key"):
        check_site(settings, ServerConnection("127.0.0.1:1", site_keys / "north.pub", site_keys / "ca.crt"), print)
    with pytest.raises(PolyclinicError, match=r"north\.pub: not a PEM certificate"):
        check_site(settings, ServerConnection("127.0.0.1:1", site_keys / "north.key", site_keys / "north.pub"), print)


def test_a_key_that_others_can_read_or_that_is_missing_gets_a_sentence(keys: Path, tmp_path: Path) -> None:
    site_keys = keys / "ours" / "hospitals" / "north"
    copy = tmp_path / "north.key"
    copy.write_bytes((site_keys / "north.key").read_bytes())
    copy.chmod(0o640)
    settings = SiteSettings("north", str(tmp_path), str(tmp_path))
    with pytest.raises(PolyclinicError, match=r"others can read this private key; run: chmod 600"):
        check_site(settings, ServerConnection("127.0.0.1:1", copy, site_keys / "ca.crt"), print)
    with pytest.raises(PolyclinicError, match=r"gone\.key: no such file; give the site's --key"):
        check_site(settings, ServerConnection("127.0.0.1:1", tmp_path / "gone.key", site_keys / "ca.crt"), print)


def test_the_log_says_what_the_site_is_and_what_may_leave(tiny_federation: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    settings = SiteSettings("south", str(tiny_federation), str(tmp_path))
    check_site(settings, ServerConnection("127.0.0.1:1"), lines.append)
    assert lines[0] == f"south: 4 images, 4 with a label, in {tiny_federation}"
    assert "  minimum_images = 5" in lines
    assert lines[-1] == f"everything that leaves is listed in {tmp_path / 'audit.jsonl'}"
    with pytest.raises(PolyclinicError, match="has no folder 'west'"):
        check_site(SiteSettings("west", str(tiny_federation), str(tmp_path)), ServerConnection("127.0.0.1:1"), print)


def test_the_log_says_what_privacy_has_spent(tiny_federation: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("max_epsilon = 5\n")
    lines: list[str] = []
    settings = SiteSettings("south", str(tiny_federation), str(tmp_path), str(tmp_path / "policy.toml"))
    check_site(settings, ServerConnection("127.0.0.1:1"), lines.append)
    assert "privacy: 0 updates in all runs spent an epsilon of 0, 5 allowed (max_epsilon)" in lines


def test_a_folder_of_images_gets_a_federation_around_it(tiny_federation: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert federation_of(tiny_federation, "north", home) == tiny_federation.resolve()
    for _ in range(2):
        federation = federation_of(tiny_federation / "north", "clinic", home)
        assert federation == (home / "federation").resolve()
        assert (federation / "clinic").resolve() == (tiny_federation / "north").resolve()
        assert (federation / "federation.toml").read_text() == (tiny_federation / "federation.toml").read_text()
    with pytest.raises(PolyclinicError, match=r"nowhere: no such folder; give the folder that holds north/images"):
        federation_of(tmp_path / "nowhere", "north", home)
