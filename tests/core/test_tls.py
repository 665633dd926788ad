"""Sentences for certificates that are not trusted, and for files that are none."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.tls import certificate_problem, client_context


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (10, "the coordinator must renew it (polyclinic keys server)"),
        (62, "connect to a name that is in the certificate (polyclinic keys server --host NAME)"),
        (64, "connect to an address that is in the certificate (polyclinic keys server --host ADDRESS)"),
        (19, "give the ca.crt of this federation's coordinator as --ca"),
    ],
)
def test_every_reason_has_its_advice(code: int, advice: str) -> None:
    error = ssl.SSLCertVerificationError("certificate verify failed")
    error.verify_code, error.verify_message = code, "it is so."
    assert certificate_problem(error) == f"the server's certificate is not trusted (it is so); {advice}"


def test_a_file_that_is_missing_or_no_certificate_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"ca.crt: cannot be read"):
        client_context(tmp_path / "ca.crt")
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(PolyclinicError, match=r"ca.crt: not a PEM certificate; expected the coordinator's ca.crt."):
        client_context(tmp_path / "ca.crt")
