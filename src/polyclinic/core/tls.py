"""TLS towards a federation's server: whom a client trusts, and a sentence for a certificate that it does not trust."""

from __future__ import annotations

import ssl
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes

_EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 10, 62, 64  # verification codes of OpenSSL


def client_context(ca: Path) -> ssl.SSLContext:
    """Settings for a client that trusts the authority of the file ``ca`` and nobody else."""
    read_bytes(ca)  # the sentence for a file that is not there
    try:
        return ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise PolyclinicError(f"{ca}: not a PEM certificate; expected the coordinator's ca.crt.") from error


def certificate_problem(error: ssl.SSLCertVerificationError) -> str:
    """Why a server's certificate was not trusted and what to do about it; a sentence without its full stop."""
    advice = {
        _EXPIRED: "the coordinator must renew it (polyclinic keys server)",
        _OTHER_NAME: "connect to a name that is in the certificate (polyclinic keys server --host NAME)",
        _OTHER_ADDRESS: "connect to an address that is in the certificate (polyclinic keys server --host ADDRESS)",
    }.get(error.verify_code, "give the ca.crt of this federation's coordinator as --ca")
    return f"the server's certificate is not trusted ({error.verify_message.rstrip('.')}); {advice}"
