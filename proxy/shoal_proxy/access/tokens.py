"""JSON web tokens: verified with the issuer's keys, they name the client.

PyJWT checks signatures and claims. This module restricts algorithms to public-key ones, binds each key to its
algorithm, and handles unknown keys.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import jwt

from shoal_proxy.errors import Forbidden, IssuerUnavailable, Unauthenticated

ALGORITHMS: Final = frozenset({
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
})  # fmt: skip
"""Without ``none``, and without algorithms that sign with a public key (HS256 with an RSA key)."""
LEEWAY_S: Final = 60
"""Tolerated difference between the issuer's clock and this one."""
MAX_TOKEN_BYTES: Final = 16384
_NAMED: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]{0,251}[\x21-\x7e])?")
_FAULTS: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is from another issuer",
    jwt.InvalidSignatureError: "its signature is wrong",
}


class TokenVerifier:
    """The verifier of tokens from one issuer.

    Args:
        issuer: expected ``iss``.
        audience: expected in ``aud``.
        scope: expected in ``scope`` or ``scp``; empty for any.
        claim: the claim that names the client.
    """

    def __init__(self, issuer: str, audience: str, scope: str = "", claim: str = "sub") -> None:
        self._issuer = issuer
        self._audience = audience
        self._scope = scope
        self._claim = claim
        self._keys: dict[str, jwt.PyJWK] | None = None
        self.look_again: Callable[[], bool] = lambda: False
        """Requests that the issuer's keys be fetched again; returns whether they will be soon."""

    @property
    def ready(self) -> bool:
        """Return whether the issuer's keys have been fetched."""
        return self._keys is not None

    def set_keys(self, document: Any) -> int:
        """Replace the issuer's keys by a key set (RFC 7517).

        Returns:
            The number of usable keys.

        Raises:
            ValueError: ``document`` is not a key set, or none of its keys can verify a signature.
        """
        listed = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(listed, list):
            raise ValueError("it is not a JSON object with a list of keys")
        found: dict[str, jwt.PyJWK] = {}
        for each in listed:
            # Keys of other kinds or uses, and malformed ones, are skipped.
            if not isinstance(each, dict) or each.get("kty") not in ("RSA", "EC", "OKP") or each.get("use") == "enc":
                continue
            try:
                key = jwt.PyJWK(each)
            except (jwt.PyJWTError, ValueError, TypeError, KeyError):
                continue
            if key.algorithm_name in ALGORITHMS:
                found[str(each.get("kid", ""))] = key
        if not found:
            raise ValueError("none of its keys can verify a signature of a supported algorithm")
        self._keys = found
        return len(found)

    def check(self, token: bytes) -> str:
        """Verify a token and return its client's name.

        Raises:
            Unauthenticated: the token is not from the issuer, not for this service, or not valid now.
            Forbidden: the token does not have the scope or the claim.
            IssuerUnavailable: the issuer's keys are being fetched.
        """
        # A JWT has three parts; anything else is a wrong key.
        if len(token) > MAX_TOKEN_BYTES or token.count(b".") != 2:
            raise Unauthenticated("the key is not valid for this service, and it is not a token")
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
                # Claims that are present are checked anyway; these must be present.
                options={"require": ["exp", "iss", "aud", self._claim]},
            )
        except (jwt.PyJWTError, TypeError, ValueError, RecursionError) as error:
            # Only the kind of error: the library's message may repeat contents of the token.
            fault = next((words for kind, words in _FAULTS.items() if isinstance(error, kind)), type(error).__name__)
            raise Unauthenticated(f"the token is not valid: {fault}") from None
        scopes: list[Any] = []
        for given in (claims.get("scope"), claims.get("scp")):  # OAuth has text, others have lists
            scopes += given.split() if isinstance(given, str) else given if isinstance(given, list) else []
        if self._scope and self._scope not in scopes:
            raise Forbidden(f"the token does not have the scope {self._scope}")
        name = claims[self._claim]
        if not isinstance(name, str) or not _NAMED.fullmatch(name):
            raise Forbidden(f"the token's claim {self._claim} is not a valid name of a client")
        return name

    def _key_of(self, header: dict[str, Any]) -> jwt.PyJWK:
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise Unauthenticated("the token's signature algorithm is not supported. Use RS256, ES256 or EdDSA.")
        keys = self._keys or {}
        named = header.get("kid")
        # A token without a key id can only be checked where the issuer has one key.
        key = keys.get(named) if isinstance(named, str) else next(iter(keys.values())) if len(keys) == 1 else None
        if key is None:
            if self.look_again() or self._keys is None:
                raise IssuerUnavailable("the issuer's keys are being fetched. Try again.")
            raise Unauthenticated("the token is signed with a key that the issuer does not publish")
        if algorithm != key.algorithm_name:
            raise Unauthenticated("the token's signature algorithm does not match its key")
        return key
