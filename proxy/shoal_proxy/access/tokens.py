"""Tokens of an issuer (JWT): whose a token is, by the issuer's keys.

PyJWT checks signatures and claims. What is left to decide here: only public-key algorithms, each key for its own one,
and what to do about a key that is not known yet.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import jwt

from shoal_proxy.errors import Forbidden, IssuerAway, Unauthenticated

ALGORITHMS: Final = frozenset({
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
})  # fmt: skip
"""Never ``none``, and none that signs with what is public here (HS256 with an RSA key)."""
LEEWAY_S: Final = 60
"""Between the issuer's clock and ours."""
MAX_TOKEN_BYTES: Final = 16384
_NAMED: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,251}[\x21-\x7e])?")


class Tokens:
    """Checks tokens.

    Args:
        issuer: what ``iss`` must be.
        audience: what must be in ``aud``.
        scope: what must be in ``scope`` or ``scp``; empty: nothing.
        claim: names the caller.
    """

    def __init__(self, issuer: str, audience: str, scope: str = "", claim: str = "sub") -> None:
        self._issuer = issuer
        self._audience = audience
        self._scope = scope
        self._claim = claim
        self._keys: dict[str, jwt.PyJWK] | None = None
        self.look_again: Callable[[], bool] = lambda: False
        """Asks for the issuer's keys to be fetched anew; returns whether they soon will be."""

    @property
    def ready(self) -> bool:
        """Return whether the issuer's keys were fetched once."""
        return self._keys is not None

    def take_keys(self, document: Any) -> int:
        """Take the issuer's key set (RFC 7517) instead of what was known; return how many of them are of use.

        Raises:
            ValueError: it is no key set, or none of its keys can check a signature.
        """
        listed = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(listed, list):
            raise ValueError("it is no JSON object with keys")
        found = {str(each.get("kid", "")): key for each in listed if (key := _public_key(each)) is not None}
        if not found:
            raise ValueError("none of its keys can check a signature that is taken here")
        self._keys = found
        return len(found)

    def check(self, token: bytes) -> str:
        """Return whose a token is.

        Raises:
            Unauthenticated: it is not one of the issuer's for us, or not at this time.
            Forbidden: it is, and lacks the scope.
            IssuerAway: its key is not known yet.
        """
        if len(token) > MAX_TOKEN_BYTES or token.count(b".") != 2:
            raise Unauthenticated("this is no key of this service and no token")
        try:
            text = token.decode("ascii")
            key = self._key_of(jwt.get_unverified_header(text))
            claims = jwt.decode(
                text,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._claim]},
            )
        except (jwt.PyJWTError, TypeError, ValueError, RecursionError) as error:
            # Its name and no more: what the library says may repeat what the token holds.
            raise Unauthenticated(f"this token is not taken: {_words(error)}") from None
        if self._scope and self._scope not in _scopes(claims):
            raise Forbidden(f"this token lacks the scope {self._scope}")
        name = claims[self._claim]
        if not isinstance(name, str) or not _NAMED.fullmatch(name):
            raise Forbidden(f"this token's claim {self._claim} is no name of a caller")
        return name

    def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK:
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise Unauthenticated("this token is signed in a way that is not taken: use RS256, ES256 or EdDSA")
        keys = self._keys or {}
        named = header.get("kid")
        key = keys.get(named) if isinstance(named, str) else next(iter(keys.values())) if len(keys) == 1 else None
        if key is None:
            if self.look_again() or self._keys is None:
                raise IssuerAway("the issuer's keys are being fetched: try again")
            raise Unauthenticated("this token is signed with a key that is not the issuer's")
        if algorithm != key.algorithm_name:
            raise Unauthenticated("this token is signed in another way than its key is for")
        return key


def _public_key(listed: Any) -> jwt.PyJWK | None:
    """Return a key of a set, if it checks signatures of a kind that is taken; one not understood is passed over."""
    if not isinstance(listed, dict) or listed.get("kty") not in ("RSA", "EC", "OKP") or listed.get("use") == "enc":
        return None
    try:
        key = jwt.PyJWK(listed)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    return key if key.algorithm_name in ALGORITHMS else None


def _scopes(claims: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for name in ("scope", "scp"):
        given = claims.get(name)
        found += given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    return found


def _words(error: Exception) -> str:
    known = {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.ImmatureSignatureError: "its time has not come",
        jwt.InvalidAudienceError: "it is for another audience",
        jwt.InvalidIssuerError: "it is another issuer's",
        jwt.InvalidSignatureError: "its signature is wrong",
    }
    return next((words for kind, words in known.items() if isinstance(error, kind)), type(error).__name__)
