"""Who a site is: the file of known keys, signatures, and clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path

import pytest

from polyclinic.deploy.coordinator import gate_authentication as module
from polyclinic.deploy.coordinator.gate_authentication import Accepted, Rejected, SiteAuthentication, write_sites
from polyclinic.deploy.keys.key_folders import make_site_key
from site_signatures import signed_headers


@pytest.fixture
def known(tmp_path: Path) -> SiteAuthentication:
    public = {name: make_site_key(tmp_path, name)[1] for name in ("north", "south")}
    make_site_key(tmp_path, "stranger")
    write_sites(tmp_path / "sites.json", public)
    return SiteAuthentication(tmp_path / "sites.json")


def check(authentication: SiteAuthentication, headers: dict[str, str]) -> Accepted | Rejected:
    return authentication.check([(k.encode(), v.encode()) for k, v in headers.items()], "192.0.2.7")


def reason(answer: Accepted | Rejected) -> str:
    return answer.reason if isinstance(answer, Rejected) else answer.site


def test_a_site_is_known_by_its_key_and_signature(known: SiteAuthentication, tmp_path: Path) -> None:
    for name, expected in (("north", "north"), ("south", "south"), ("stranger", "unknown-key")):
        assert reason(check(known, signed_headers(tmp_path / f"{name}.key"))) == expected
    false = check(known, signed_headers(tmp_path / "north.key", signer=tmp_path / "south.key"))
    assert isinstance(false, Rejected)
    assert (false.status, false.reason, false.guilty) == (401, "signature", True)
    assert check(known, {}).notice == "a machine at 192.0.2.7 without a site's key was turned away"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        (0, "north"), (4, "north"), (-200, "north"),
        (7.3, "its clock is 7.3 s ahead of this machine's"), (3600, "its clock is 3600.0 s ahead of this machine's"),
        (-400, "its clock is 400.0 s behind this machine's"),
    ],
)  # fmt: skip
def test_a_wrong_clock_is_named(
    known: SiteAuthentication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, expected: str
) -> None:
    headers = signed_headers(tmp_path / "north.key", ahead)
    signed_at = datetime.fromisoformat(headers["flwr-timestamp"])

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return signed_at - timedelta(seconds=ahead)

    monkeypatch.setattr(module, "datetime", Clock)
    answer = check(known, headers)
    if ahead in (0, 4, -200):
        assert answer == Accepted("north")
        return
    assert isinstance(answer, Rejected)
    assert (answer.status, answer.reason, answer.guilty, answer.site) == (401, "clock", False, "north")
    assert answer.notice == f"north was turned away: {expected}; set both by NTP"


def test_the_headers_of_a_refusal_are_those_that_sites_read() -> None:
    assert Rejected(401, "unknown-key").headers() == ((b"polyclinic-reason", b"unknown-key"),)
    (_, reason_value), (name, time) = Rejected(401, "clock").headers()
    assert (reason_value, name) == (b"clock", b"polyclinic-time")
    assert datetime.fromisoformat(time.decode()).tzinfo == UTC


@pytest.mark.parametrize("time", ["", "yesterday", "2026-01-01T00:00:00", "9" * 30, "2026-13-01T00:00:00+00:00"])
def test_a_signed_time_that_is_none_is_refused(known: SiteAuthentication, tmp_path: Path, time: str) -> None:
    from base64 import b64encode

    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.supercore.primitives.asymmetric import sign_message

    private = load_ssh_private_key((tmp_path / "north.key").read_bytes(), None)
    headers = signed_headers(tmp_path / "north.key")
    headers |= {"flwr-timestamp": time, "flwr-signature": b64encode(sign_message(private, time.encode())).decode()}
    assert reason(check(known, headers)) == "signature"


def test_a_key_that_is_added_is_read_and_a_damaged_file_lets_nobody_in(
    known: SiteAuthentication, tmp_path: Path
) -> None:
    stranger = signed_headers(tmp_path / "stranger.key")
    assert reason(check(known, stranger)) == "unknown-key"
    write_sites(known.file, {"west": tmp_path / "stranger.pub"})
    assert reason(check(known, stranger)) == "west"
    assert reason(check(known, signed_headers(tmp_path / "north.key"))) == "unknown-key"
    for text in ("", "[]", '{"west": 1}', '{"west": "no key"}'):
        known.file.write_text(text)
        answer = check(known, stranger)
        assert isinstance(answer, Rejected)
        assert (answer.status, answer.reason, answer.guilty) == (503, "starting", False)


def test_the_tolerance_and_the_headers_are_flower_s() -> None:
    common, core = import_module("flwr.common.constant"), import_module("flwr.supercore.constant")
    assert common.SYSTEM_TIME_TOLERANCE == module.AHEAD
    assert common.TIMESTAMP_TOLERANCE + common.SYSTEM_TIME_TOLERANCE == module.BEHIND
    assert core.FLEET_HTTP_PUBLIC_KEY_HEADER.encode() == module.KEY_HEADER
    assert core.FLEET_HTTP_SIGNATURE_HEADER.encode() == module.SIGNATURE_HEADER
    assert common.TIMESTAMP_HEADER.encode() == module.TIME_HEADER
