"""A certificate authority and a server certificate: kubectl sends bearer tokens over TLS only."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_YEARS = timedelta(days=3650)
_DNS_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts."""

    authority: str
    certificate: str
    key: str


def make_certificates(addresses: tuple[str, ...]) -> Certificates:
    """Make an authority, which signs one certificate for the addresses and is then forgotten."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1()))
    authority = _authority(authority_key)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in _DNS_NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder("shoal-local", authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(usage, critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Certificates(_pem(authority), _pem(certificate), _key_pem(key))


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    bits = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    usage = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **bits)
    return (
        _builder("shoal-local-ca", _name("shoal-local-ca"), key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _YEARS)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
