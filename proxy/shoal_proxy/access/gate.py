"""Identify the client of a request by its headers, and verify its credentials."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from shoal_proxy.access.keys import Keys
from shoal_proxy.access.limits import Account, Limits
from shoal_proxy.errors import Forbidden, InvalidRequest, Unauthenticated

API_KEY: Final = b"x-api-key"
AUTHORIZATION: Final = b"authorization"
TOKENS: Final = "(jwt)"
"""Label in metrics of clients with a token and no limit by name; no key can have this name."""
_BEARER: Final = re.compile(rb"(?i)bearer +(\S+)")
_NAMED: Final = re.compile(rb"[\x21-\x7e]([\x20-\x7e]{0,251}[\x21-\x7e])?")
_HOW: Final = "as Authorization: Bearer KEY, or as x-api-key: KEY"
CheckToken = Callable[[bytes], str]
"""Returns the client's name for a token; raises Unauthenticated, Forbidden or IssuerAway."""


class Caller:
    """A client, and the rows that it holds of its limits."""

    __slots__ = ("account", "credentials", "label", "name", "rows")

    def __init__(self, name: str, label: str, credentials: tuple[tuple[bytes, bytes], ...]) -> None:
        self.name = name
        self.label = label
        """Its name in metrics."""
        self.credentials = credentials
        """The headers that prove its identity, forwarded with its requests."""
        self.account: Account | None = None
        """Account of the client, while a request is charged to it; None without limits."""
        self.rows = 0


class Gate:
    """Verifies keys and tokens, and counts requests of clients.

    Args:
        limits: limits of clients.
        header: header (lower case) in which a gateway names its client; empty for none.
        gateways: names of the keys of such gateways.
        check_token: None if tokens are not accepted.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        header: bytes = b"",
        gateways: Collection[str] = (),
        check_token: CheckToken | None = None,
    ) -> None:
        self.keys: Keys | None = None
        """Replaced on change; None without keys."""
        self.reasons: dict[str, str] = {}
        """By source of credentials, the reason that clients cannot be authenticated now."""
        self._limits = limits
        self._header = header
        self._said_once = (API_KEY, AUTHORIZATION, header)
        self._gateways = frozenset(gateways)
        self._check_token = check_token
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        """Responses by label and status."""
        self.rows: dict[str, int] = defaultdict(int)
        """Admitted rows by label."""

    @property
    def reason(self) -> str:
        """Return why clients cannot be authenticated, for readiness; empty where they can."""
        return "; ".join(self.reasons.values())

    def check_once(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Reject a head with a credential header twice: one component would use the first, another the last.

        Args:
            headers: headers with names in lower case.

        Raises:
            InvalidRequest: a header occurs twice.
        """
        names = [name for name, _ in headers]
        for once in self._said_once:
            if names.count(once) > 1:
                raise InvalidRequest(f"the request has more than one {once.decode()} header. Send one.")

    def identify(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the client.

        Raises:
            Unauthenticated, Forbidden, IssuerAway: the credentials are missing, invalid, or cannot be checked yet.
        """
        name_of_header = API_KEY
        presented = headers.get(API_KEY)
        if presented is None:
            name_of_header = AUTHORIZATION
            bearer = _BEARER.fullmatch(headers.get(AUTHORIZATION, b""))
            if bearer is None:
                raise Unauthenticated(f"the request has no key, which this service requires. Send it {_HOW}.")
            presented = bearer[1]
        credentials = ((name_of_header, headers[name_of_header]),)
        owner = None if self.keys is None else self.keys.owner(presented)
        if owner is not None and owner not in self._gateways:
            return Caller(owner, owner, credentials)
        if owner is not None:
            # A gateway's key: the client is the one that the gateway names.
            given = headers.get(self._header)
            if given is None or not _NAMED.fullmatch(given):
                header = self._header.decode()
                raise Forbidden(
                    f"{owner} is a gateway's key, so the request must name its client in the header {header}"
                )
            name = given.decode("ascii")
            # Only names with a limit are labels: their number is bounded.
            label = name if name in self._limits.names else owner
            return Caller(name, label, (*credentials, (self._header, given)))
        if self._check_token is None or name_of_header is API_KEY:
            raise Unauthenticated("the key is not valid for this service, or has been revoked")
        # Names in tokens are unbounded, so only those with a limit are labels.
        name = self._check_token(presented)
        return Caller(name, name if name in self._limits.names else TOKENS, credentials)

    def enter(self, caller: Caller, rows: int, now_s: float, *, forwarded: bool) -> None:
        """Charge a request's rows to its client.

        Requests marked as forwarded (``forwarded``) are counted like all others: any client can send the mark.

        Raises:
            LimitReached: the client is at its limit.
        """
        caller.account = self._limits.account(caller.name, now_s, forwarded=forwarded)
        if caller.account is not None:
            caller.account.take(rows, now_s)
            caller.rows = rows
        self.rows[caller.label] += rows

    def answered(self, caller: Caller, status: int) -> None:
        """Count the client's response and release its rows."""
        self.requests[caller.label, status] += 1
        self.leave(caller)

    def leave(self, caller: Caller) -> None:
        """Release the rows that the client holds, once; rows that still run are released with their batch."""
        if caller.account is not None:
            caller.account.rows -= caller.rows
            caller.account = None
