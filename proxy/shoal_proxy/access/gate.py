"""Who a request's headers say that calls, and whether they prove it."""

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
"""Stands in the metrics for all who show a token and have no limit by name; no key can be called so."""
_BEARER: Final = re.compile(rb"(?i)bearer +(\S+)")
_NAMED: Final = re.compile(rb"[\x21-\x7e]([\x20-\x7e]{0,251}[\x21-\x7e])?")
_HOW: Final = "as Authorization: Bearer KEY, or as x-api-key: KEY"
CheckToken = Callable[[bytes], str]
"""Returns whose a token is; raises Unauthenticated, Forbidden or IssuerAway."""


class Caller:
    """Who calls, and what it holds of its limits while it does.

    ``label`` names it in metrics; ``credentials`` are the headers that prove it, for a sibling to see.
    """

    __slots__ = ("account", "credentials", "label", "name", "rows")

    def __init__(self, name: str, label: str, credentials: tuple[tuple[bytes, bytes], ...]) -> None:
        self.name = name
        self.label = label
        self.credentials = credentials
        self.account: Account | None = None
        self.rows = 0


class Gate:
    """Knows keys and tokens, and counts what callers do.

    Args:
        limits: of callers.
        header: in lower case, where a gateway says for whom it calls; empty: nowhere.
        gateways: names of the keys whose holders are believed to be such gateways.
        check_token: None: no tokens are taken.
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
        """Replaced whenever they change; None where there are none to be."""
        self.reasons: dict[str, str] = {}
        """Why those could not be let in who are known by that, as long as it is so."""
        self._limits = limits
        self._header = header
        self._said_once = (API_KEY, AUTHORIZATION, header)
        self._gateways = frozenset(gateways)
        self._check_token = check_token
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        """Answers, by the caller's label and the status."""
        self.rows: dict[str, int] = defaultdict(int)
        """Rows let in, by the caller's label."""

    @property
    def reason(self) -> str:
        """Return why callers could not be let in, for readiness to tell, or nothing."""
        return "; ".join(self.reasons.values())

    def check_once(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Refuse a head that says twice who calls: who looks at the first and who looks at the last would not agree.

        Args:
            headers: names in lower case.

        Raises:
            InvalidRequest: it does.
        """
        names = [name for name, _ in headers]
        for once in self._said_once:
            if names.count(once) > 1:
                raise InvalidRequest(f"the request has more than one {once.decode()} header: send one")

    def identify(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return who calls.

        Raises:
            ProxyError: nobody who may.
        """
        name_of_header = API_KEY
        presented = headers.get(API_KEY)
        if presented is None:
            name_of_header = AUTHORIZATION
            bearer = _BEARER.fullmatch(headers.get(AUTHORIZATION, b""))
            if bearer is None:
                raise Unauthenticated(f"this service asks for a key: send it {_HOW}")
            presented = bearer[1]
        credentials = ((name_of_header, headers[name_of_header]),)
        owner = None if self.keys is None else self.keys.owner(presented)
        if owner is not None:
            if owner in self._gateways:
                return self._named(owner, headers, credentials)
            return Caller(owner, owner, credentials)
        if self._check_token is None or name_of_header is API_KEY:
            raise Unauthenticated("this is no key of this service, or none any more")
        name = self._check_token(presented)
        return Caller(name, name if name in self._limits.names else TOKENS, credentials)

    def _named(
        self, gateway: str, headers: Mapping[bytes, bytes], credentials: tuple[tuple[bytes, bytes], ...]
    ) -> Caller:
        """Return for whom a gateway calls."""
        given = headers.get(self._header)
        if given is None or not _NAMED.fullmatch(given):
            header = self._header.decode()
            raise Forbidden(f"the key of {gateway} is a gateway's, which must name its caller in the header {header}")
        name = given.decode("ascii")
        label = name if name in self._limits.names else gateway
        return Caller(name, label, (*credentials, (self._header, given)))

    def enter(self, caller: Caller, rows: int, now_s: float, *, handed_over: bool) -> None:
        """Charge a request's rows to its caller, or raise `LimitReached`.

        What is ``handed_over`` is counted like all else: whoever calls can say so, and would be unseen.
        """
        caller.account = self._limits.account(caller.name, now_s, handed_over=handed_over)
        if caller.account is not None:
            caller.account.take(rows, now_s)
            caller.rows = rows
        self.rows[caller.label] += rows

    def answered(self, caller: Caller, status: int) -> None:
        """Note that the caller has its answer."""
        self.requests[caller.label, status] += 1
        self.leave(caller)

    def leave(self, caller: Caller) -> None:
        """Give back what the caller holds, once; what still runs of it is given back with its batch."""
        if caller.account is not None:
            caller.account.rows -= caller.rows
            caller.account = None
