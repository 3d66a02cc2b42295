"""The protocol between operator and activator, which poll each other over HTTP; both responses are JSON.

    GET OPERATOR/v1/rooms?seen=VERSION       -> ActivatorTable: services at zero replicas, their ports and ready pods
    GET ACTIVATOR/v1/waiting?seen=REPORT     -> ActivatorReport: services with held requests, and the activator's table

These are long polls: ``seen`` is the opaque mark of the last response, and the request waits until there is a newer
response, at most ``MAX_POLL_S``.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

TABLE_PATH: Final = "/v1/rooms"
REPORT_PATH: Final = "/v1/waiting"
SEEN: Final = "seen"
MAX_POLL_S: Final = 10.0
"""Less than the idle timeout of load balancers and firewalls."""
MAX_REPORT_BYTES: Final = 2**22
"""Limit of an activator's response; ten thousand services with held requests take less than a megabyte."""
MAX_TABLE_BYTES: Final = 2**24
"""Limit of the operator's response, which a service on every port almost reaches."""
MAX_REASON_LENGTH: Final = 200
"""Limit of an error of opening a port, in characters."""

# Types of documents, with the bounds that a peer must keep.
_Mark = Annotated[str, Meta(max_length=64)]
_Service = Annotated[str, Meta(max_length=320, pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+\Z")]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ActivatorAsynchronous(Struct, frozen=True, omit_defaults=True):
    """How the activator treats asynchronous requests of a service."""

    timeout_s: Annotated[float, Meta(gt=0, le=604_800)]
    """Maximum time from acceptance until a pod has run the request."""
    result_s: Annotated[float, Meta(gt=0, le=2_592_000)]
    """Time that the activator keeps an error which has become the result."""
    store: bool = False
    """Whether pods find results in a store that outlives them."""


class ActivatorService(Struct, frozen=True, omit_defaults=True):
    """A service for which the activator has a port."""

    name: _Service
    """Namespace and name, ``default/adder``."""
    port: Annotated[int, Meta(ge=1, le=65535)]
    """The activator's port for the service."""
    addresses: tuple[Annotated[str, Meta(max_length=80)], ...] = ()
    """``HOST:PORT`` of ready pods; requests are held while there are none."""
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    """Timeout of requests without their own."""
    max_body_bytes: Annotated[int, Meta(ge=1)] = 2**26
    """Limit of request bodies, as at the pods."""
    forwards: Annotated[int, Meta(ge=1)] = 64
    """Requests that one pod gets at a time, so that its queue does not overflow."""
    start_s: Annotated[float, Meta(ge=0)] | None = None
    """Last time from the first held request until a pod was ready; None if not measured."""
    asynchronous: ActivatorAsynchronous | None = None
    """None: the service accepts no asynchronous requests."""


class ActivatorTable(Struct, frozen=True):
    """All services for which the activator has a port."""

    version: _Mark
    """Mark of this table, which an activator reports back."""
    services: tuple[ActivatorService, ...]
    peers: tuple[Annotated[str, Meta(max_length=64)], ...] = ()
    """IP addresses of all activators: each holds other requests."""


class ActivatorReport(Struct, frozen=True):
    """Requests held by one activator, by service."""

    news: _Mark
    """Mark of this document, for the next request."""
    version: _Mark
    """Mark of the activator's table; empty before the first."""
    waiting: dict[_Service, _Count]
    """Number of held requests, by service, without zeros."""
    refused: dict[_Service, Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]] = {}
    """Error of a port that could not be opened, by service; its requests must be routed elsewhere."""


def encode(document: ActivatorTable | ActivatorReport) -> bytes:
    """Encode a response of the operator or the activator as JSON."""
    return msgspec.json.encode(document)


def decode_table(body: bytes) -> ActivatorTable:
    """Decode the operator's response.

    Raises:
        ValueError: the body is malformed.
    """
    return msgspec.json.decode(body, type=ActivatorTable)


def decode_report(body: bytes) -> ActivatorReport:
    """Decode an activator's response.

    Raises:
        ValueError: the body is malformed.
    """
    return msgspec.json.decode(body, type=ActivatorReport)
