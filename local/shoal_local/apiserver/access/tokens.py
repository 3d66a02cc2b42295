"""Service account tokens: JSON Web Tokens that this server signs (HS256) and verifies."""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

import orjson

ISSUER = "https://kubernetes.default.svc.cluster.local"
_HEADER = {"alg": "HS256", "typ": "JWT"}


class BadTokenError(Exception):
    """The token was not signed by this server, is malformed, or has expired."""


@dataclass(frozen=True, slots=True)
class Account:
    """A service account; one that is created again has another uid."""

    namespace: str
    name: str
    uid: str


def make_token(
    account: Account, key: bytes, *, now_s: int, lifetime_s: int, audiences: tuple[str, ...] = (ISSUER,)
) -> str:
    """Return a token for the account; times are seconds since 1970."""
    claims = {
        "aud": list(audiences),
        "exp": now_s + lifetime_s,
        "iat": now_s,
        "iss": ISSUER,
        "kubernetes.io": {"namespace": account.namespace, "serviceaccount": {"name": account.name, "uid": account.uid}},
        "nbf": now_s,
        "sub": f"system:serviceaccount:{account.namespace}:{account.name}",
    }
    # A JSON Web Token: header, claims and signature.
    signed = f"{_base64(orjson.dumps(_HEADER))}.{_base64(orjson.dumps(claims))}"
    return f"{signed}.{_signature(signed, key)}"


def read_token(token: str, key: bytes, now_s: int) -> Account:
    """Return the service account of a token.

    Raises BadTokenError: another key signed it, or it has expired.
    """
    signed, _, signature = token.rpartition(".")
    # In constant time, and before the claims are parsed.
    if not hmac.compare_digest(signature.encode(), _signature(signed, key).encode()):
        raise BadTokenError("the signature is not from this server")
    # Base64 without padding; superfluous padding is ignored.
    claims: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(signed.partition(".")[2] + "=="))
    if now_s >= claims["exp"]:
        raise BadTokenError("the token has expired")
    bound = claims["kubernetes.io"]
    account = bound["serviceaccount"]
    return Account(bound["namespace"], account["name"], account["uid"])


def _signature(text: str, key: bytes) -> str:
    return _base64(hmac.new(key, text.encode(), hashlib.sha256).digest())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
