"""Identify the client of a request by its headers, and verify its credentials."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from shoal_proxy.access.keys import ApiKeys
from shoal_proxy.access.limits import ClientLimits, ClientQuota
from shoal_proxy.errors import Forbidden, InvalidRequest, Unauthenticated

API_KEY: Final = b"x-api-key"
AUTHORIZATION: Final = b"authorization"
TOKENS: Final = "(jwt)"
"""Label in metrics of clients with a token and no limit by name; no key can have this name."""
_BEARER: Final = re.compile(rb"(?i)bearer +(\S+)")
_CLIENT_NAME: Final = re.compile(rb"[\x21-\x7e]([\x20-\x7e]{0,251}[\x21-\x7e])?")
_KEY_HEADERS: Final = "as Authorization: Bearer KEY, or as x-api-key: KEY"
CheckToken = Callable[[bytes], str]
"""Returns the client's name for a token; raises Unauthenticated, Forbidden or IssuerUnavailable."""


class AuthenticatedClient:
    """An authenticated client, and the rows of its request that count against limits."""

    __slots__ = ("credentials", "label", "name", "quota", "rows")

    def __init__(self, name: str, label: str, credentials: tuple[tuple[bytes, bytes], ...]) -> None:
        self.name = name
        self.label = label
        """Its name in metrics."""
        self.credentials = credentials
        """The headers that prove its identity, forwarded with its requests."""
        self.quota: ClientQuota | None = None
        """Its account while a request is charged to it; None without limits."""
        self.rows = 0

    def take_charge(self) -> "AuthenticatedClient":
        """Return the client with the charge of its request, which this object then no longer has."""
        taken = AuthenticatedClient(self.name, self.label, self.credentials)
        taken.quota, taken.rows = self.quota, self.rows
        self.quota = None
        return taken

    def release_charge(self) -> None:
        """Release the rows charged for the request; a second call has no effect."""
        if self.quota is not None:
            self.quota.rows -= self.rows
            self.quota = None


class AccessControl:
    """Authentication of requests by keys and tokens, and counters by client.

    Args:
        limits: limits of clients.
        header: header (lower case) in which a gateway names its client; empty for none.
        gateways: names of the keys that belong to gateways.
        check_token: verifies a token; None if tokens are not accepted.
    """

    def __init__(
        self,
        limits: ClientLimits,
        *,
        header: bytes = b"",
        gateways: Collection[str] = (),
        check_token: CheckToken | None = None,
    ) -> None:
        self.keys: ApiKeys | None = None
        """The API keys, replaced when they change; None if no keys are configured."""
        self.reasons: dict[str, str] = {}
        """By source of credentials, the reason that clients cannot be authenticated now."""
        self._limits = limits
        self._header = header
        self._credential_headers = (API_KEY, AUTHORIZATION, header)
        self._gateways = frozenset(gateways)
        self._check_token = check_token
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        """Responses by label and status."""
        self.rows: dict[str, int] = defaultdict(int)
        """Admitted rows by label."""

    @property
    def reason(self) -> str:
        """Return why clients cannot be authenticated now; empty if they can."""
        return "; ".join(self.reasons.values())

    def reject_repeated_credentials(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Reject a request that has the same credential header twice.

        Otherwise one component could use the first value, and another the last.

        Args:
            headers: headers with names in lower case.

        Raises:
            InvalidRequest: a header occurs twice.
        """
        names = [name for name, _ in headers]
        for once in self._credential_headers:
            if names.count(once) > 1:
                raise InvalidRequest(f"the request has more than one {once.decode()} header. Send one.")

    def identify(self, headers: Mapping[bytes, bytes]) -> AuthenticatedClient:
        """Return the client whose credentials a request's headers contain.

        Raises:
            Unauthenticated: the credentials are missing or invalid.
            Forbidden: the request must name a client, or the token does not have a required claim.
            IssuerUnavailable: the token cannot be checked yet.
        """
        name_of_header = API_KEY
        presented = headers.get(API_KEY)
        if presented is None:
            name_of_header = AUTHORIZATION
            bearer = _BEARER.fullmatch(headers.get(AUTHORIZATION, b""))
            if bearer is None:
                raise Unauthenticated(f"the request has no key, which this service requires. Send it {_KEY_HEADERS}.")
            presented = bearer[1]
        credentials = ((name_of_header, headers[name_of_header]),)
        owner = None if self.keys is None else self.keys.owner(presented)
        if owner is not None and owner not in self._gateways:
            return AuthenticatedClient(owner, owner, credentials)
        if owner is not None:
            # A gateway's key: the client is the one that the gateway names.
            given = headers.get(self._header)
            if given is None or not _CLIENT_NAME.fullmatch(given):
                header = self._header.decode()
                raise Forbidden(
                    f"{owner} is a gateway's key, so the request must name its client in the header {header}"
                )
            name = given.decode("ascii")
            # Only names with a limit are labels: their number is bounded.
            label = name if name in self._limits.names else owner
            return AuthenticatedClient(name, label, (*credentials, (self._header, given)))
        if self._check_token is None or name_of_header is API_KEY:
            raise Unauthenticated("the key is not valid for this service, or has been revoked")
        # Names in tokens are unbounded, so only those with a limit are labels.
        name = self._check_token(presented)
        return AuthenticatedClient(name, name if name in self._limits.names else TOKENS, credentials)

    def charge(self, client: AuthenticatedClient, rows: int, now_s: float, *, forwarded: bool) -> None:
        """Charge a request's rows to its client.

        Requests marked as ``forwarded`` are charged, too, since any client can send the mark.

        Raises:
            LimitReached: the client is at its limit.
        """
        client.quota = self._limits.quota(client.name, now_s, forwarded=forwarded)
        if client.quota is not None:
            client.quota.charge(rows, now_s)
            client.rows = rows
        self.rows[client.label] += rows

    def record_response(self, client: AuthenticatedClient, status: int) -> None:
        """Count a response to the client, and release the rows of its request."""
        self.requests[client.label, status] += 1
        self.release(client)

    def release(self, client: AuthenticatedClient) -> None:
        """Release the rows charged to the client; a second call has no effect.

        Cancelled rows that still run are not released here, but at the end of their batch.
        """
        client.release_charge()
