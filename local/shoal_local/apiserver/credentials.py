"""The credentials of one cluster: certificates (kubectl sends tokens over TLS only), tokens, and the kubeconfig."""

import secrets
from dataclasses import asdict, dataclass

import trustme

_DNS_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts: the certificate of the authority, and the server's certificate and key."""

    authority: str
    certificate: str
    key: str


def make_certificates(addresses: tuple[str, ...]) -> Certificates:
    """Return a certificate for the addresses, signed by a new authority whose key is discarded."""
    authority = trustme.CA(organization_name="shoal-local")
    made = authority.issue_cert(*_DNS_NAMES, *addresses, common_name="shoal-local")
    pems = authority.cert_pem, made.cert_chain_pems[0], made.private_key_pem
    return Certificates(*(pem.bytes().decode() for pem in pems))


@dataclass(frozen=True, slots=True)
class Credentials(Certificates):
    """The certificates and secrets of an API server, kept across restarts."""

    admin_token: str
    signing_key: str
    """Key of the service account tokens."""


def new_credentials(host: str) -> Credentials:
    """Make certificates for loopback and ``host`` (an IP address), and new secrets."""
    # Without duplicates, in this order.
    addresses = tuple(dict.fromkeys(("127.0.0.1", "::1", host)))
    made = make_certificates(addresses)
    return Credentials(**asdict(made), admin_token=secrets.token_urlsafe(32), signing_key=secrets.token_urlsafe(32))
