"""Secrets of one cluster, and the kubeconfig that tells a client how to use them."""

import base64
import secrets
from dataclasses import dataclass

import yaml

from shoal_local.apiserver.certificates import make_certificates

NAME = "shoal-local"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What clients trust and what they prove themselves with; it must outlive a restart."""

    authority: str
    """Certificate of the authority, PEM."""
    certificate: str
    """Certificate of the server, PEM."""
    key: str
    """Private key of the server, PEM."""
    admin_token: str
    signing_key: str
    """Key of the service account tokens."""


def new_credentials(host: str) -> Credentials:
    """Make certificates for loopback and for ``host`` (an IP address), and fresh secrets."""
    addresses = tuple(dict.fromkeys(("127.0.0.1", "::1", host)))
    made = make_certificates(addresses)
    tokens = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    return Credentials(made.authority, made.certificate, made.key, *tokens)


def kubeconfig(url: str, authority: str, token: str) -> str:
    """Return a kubeconfig for a server and a bearer token."""
    data = base64.b64encode(authority.encode()).decode()
    cluster = {"server": url, "certificate-authority-data": data}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }
    return yaml.safe_dump(document, sort_keys=False)
