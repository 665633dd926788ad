"""The secret of a site."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from polyclinic.deploy.site.site_secret import SiteSecret


def test_a_fingerprint_is_an_hmac_by_a_key_that_only_the_site_can_read(tmp_path: Path) -> None:
    """HMAC written out: two hashes, with the key padded to a block of 64 bytes."""
    found = SiteSecret(tmp_path).fingerprint("case-1,train")
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = file.read_bytes().ljust(64, b"\0")
    inner, outer = (bytes(byte ^ pad for byte in key) for pad in (0x36, 0x5C))
    expected = hashlib.sha256(outer + hashlib.sha256(inner + b"case-1,train").digest()).hexdigest()
    assert found == expected


def test_it_outlives_the_process_and_no_other_site_has_it(tmp_path: Path) -> None:
    homes = [tmp_path / "north", tmp_path / "south"]
    for home in homes:
        home.mkdir()
    first, again, other = (SiteSecret(home).fingerprint("split") for home in (homes[0], homes[0], homes[1]))
    assert first == again
    assert first != other
    assert SiteSecret(homes[0]).fingerprint("splits") != first
