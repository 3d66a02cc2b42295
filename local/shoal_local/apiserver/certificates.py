"""A certificate authority and a server certificate: kubectl sends bearer tokens over TLS only."""

from dataclasses import dataclass

import trustme

_DNS_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts."""

    authority: str
    certificate: str
    key: str


def make_certificates(addresses: tuple[str, ...]) -> Certificates:
    """Make an authority, which signs one certificate for the addresses and is then forgotten."""
    authority = trustme.CA(organization_name="shoal-local")
    made = authority.issue_cert(*_DNS_NAMES, *addresses, common_name="shoal-local")
    pems = authority.cert_pem, made.cert_chain_pems[0], made.private_key_pem
    return Certificates(*(pem.bytes().decode() for pem in pems))
