"""X.509 for ``polyclinic keys``: the certificate authority of a federation, and its server's certificate.

Imports ``cryptography``, so import this module only inside functions; others call ``key_folders``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from polyclinic.core.errors import PolyclinicError
from polyclinic.core.files import read_bytes

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise PolyclinicError("keys need the extra: pip install 'polyclinic[flower]'.") from error

CA_DAYS = 3650
# Clocks of sites differ: a certificate is valid from a day before it is made.
_BACKDATED = timedelta(days=1)
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True)
class Authority:
    """A certificate authority and the key that it signs with."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def new_authority() -> Authority:
    """A new authority, which may sign servers but no further authorities."""
    key = ec.generate_private_key(ec.SECP384R1())
    serial = x509.random_serial_number()
    # The number tells one federation's authority from another's where a machine trusts both.
    name = _name(f"polyclinic CA {serial % 16**8:08x}")
    now = datetime.now(UTC)
    builder = _certificate(name, name, key.public_key(), key.public_key(), serial)
    builder = builder.not_valid_before(now - _BACKDATED).not_valid_after(now + timedelta(days=CA_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return Authority(key, builder.sign(key, hashes.SHA384()))


def read_authority(certificate: Path, key: Path) -> Authority:
    """The authority of these two files."""
    issuer = read_certificate(certificate)
    try:
        secret = serialization.load_pem_private_key(read_bytes(key), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise PolyclinicError(
            f"{key}: not a PEM private key without a password ({error}); restore it from a copy."
        ) from error
    if not isinstance(secret, ec.EllipticCurvePrivateKey) or secret.public_key() != issuer.public_key():
        raise PolyclinicError(f"{key}: is not the key of {certificate}; restore both files from the same copy.")
    if issuer.not_valid_after_utc <= datetime.now(UTC):
        raise PolyclinicError(
            f"{certificate}: expired on {issuer.not_valid_after_utc:%Y-%m-%d}; make the keys in a new folder and send "
            "its ca.crt to every hospital."
        )
    return Authority(secret, issuer)


def server_certificate(
    authority: Authority, hosts: Sequence[x509.GeneralName], days: int
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new key and its certificate for these hosts, never longer than the authority's."""
    key = ec.generate_private_key(ec.SECP384R1())
    now = datetime.now(UTC)
    issuer = authority.certificate
    builder = _certificate(
        _name("polyclinic server"), issuer.subject, key.public_key(), authority.key.public_key(),
        x509.random_serial_number(),
    )  # fmt: skip
    builder = builder.not_valid_before(max(now - _BACKDATED, issuer.not_valid_before_utc))
    # The cap comes before the sum, which a huge number of days would take out of the calendar.
    left = issuer.not_valid_after_utc - now
    builder = builder.not_valid_after(now + min(timedelta(days=min(days, CA_DAYS)), left))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return key, builder.sign(authority.key, hashes.SHA384())


def host_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """DNS names and addresses as a certificate holds them, each once."""
    return list(dict.fromkeys(_host(host.strip()) for host in hosts))


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate of a PEM file."""
    try:
        return x509.load_pem_x509_certificate(read_bytes(path))
    except ValueError as error:
        raise PolyclinicError(f"{path}: not a PEM certificate ({error}); restore it from a copy.") from error


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The hosts that a certificate is for; none for an authority's."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def pem(certificate: x509.Certificate) -> str:
    """The text of a certificate's file."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The bytes of a TLS private key's file, not encrypted: servers start unattended."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _host(host: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A last label of digits alone is a mistyped address.
        if not _DNS_NAME.fullmatch(host) or host.rpartition(".")[2].isdigit():
            raise PolyclinicError(
                f"--host: '{host}' is neither a DNS name nor an IP address; give the server's name or address as the "
                "hospitals see it, such as fl.example.org, without https:// and without a port."
            ) from None
        return x509.DNSName(host.lower())
    if address.is_unspecified:
        raise PolyclinicError(
            f"--host: {host} is where a server listens, not where it is found; give the name or address that the "
            "hospitals connect to."
        )
    return x509.IPAddress(address)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer_public: ec.EllipticCurvePublicKey,
    serial: int,
) -> x509.CertificateBuilder:
    """The fields of both certificates; OpenSSL's strict mode (Python 3.13) asks for the two key identifiers."""
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public, serial_number=serial)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
