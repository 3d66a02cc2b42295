"""What the operator and the waiting room tell each other, each asking the other by HTTP; both answers are JSON.

    GET OPERATOR/v1/rooms?seen=VERSION   -> RoomTable: who may sleep, where requests for it arrive, who is awake
    GET ROOM/v1/waiting?seen=NEWS        -> RoomNews: for whom requests wait, and which table the room goes by

A question that names what was answered last is answered when there is something else to say, or after
``LONGEST_WAIT_S``. A mark is opaque: it is compared, and given back.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

ROOMS_PATH: Final = "/v1/rooms"
WAITING_PATH: Final = "/v1/waiting"
SEEN: Final = "seen"
LONGEST_WAIT_S: Final = 10.0
"""Less than what load balancers and firewalls leave a silent connection."""
MAX_NEWS_BYTES: Final = 2**22
"""A longer answer of a room is none; ten thousand services that all wait make less than a megabyte."""

MAX_TABLE_BYTES: Final = 2**24
"""A longer answer of the operator is none; as many services as there are ports make about as much."""

MAX_REASON_LENGTH: Final = 200
"""Of why a port could not be opened."""

_Mark = Annotated[str, Meta(max_length=64)]
_Service = Annotated[str, Meta(max_length=320, pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+\Z")]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class RoomService(Struct, frozen=True, omit_defaults=True):
    """One service, as the waiting room knows it.

    Args:
        name: namespace and name, ``default/adder``.
        port: where requests for it arrive.
        addresses: ``HOST:PORT`` of its pods that are ready; none: requests are held.
        timeout_s: how long a request waits whose caller names no time.
        max_body_bytes: a longer body is refused, as its pods would.
        forwards: requests that one pod is given at a time, so that none of them overflows its queue.
        start_s: how long it took the last time from the first request until a pod was ready; None: not measured.
    """

    name: _Service
    port: Annotated[int, Meta(ge=1, le=65535)]
    addresses: tuple[Annotated[str, Meta(max_length=80)], ...] = ()
    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0
    max_body_bytes: Annotated[int, Meta(ge=1)] = 2**26
    forwards: Annotated[int, Meta(ge=1)] = 64
    start_s: Annotated[float, Meta(ge=0)] | None = None


class RoomTable(Struct, frozen=True):
    """All services that may sleep.

    Args:
        version: of this table; a room tells which one it goes by.
    """

    version: _Mark
    services: tuple[RoomService, ...]


class RoomNews(Struct, frozen=True):
    """What one room holds.

    Args:
        news: a mark for the next question.
        version: of the table that it goes by; empty before the first.
        waiting: requests that wait, by service, of those where there are any.
        refused: why a port could not be opened, by service; requests for it must be led elsewhere.
    """

    news: _Mark
    version: _Mark
    waiting: dict[_Service, _Count]
    refused: dict[_Service, Annotated[str, Meta(max_length=MAX_REASON_LENGTH)]] = {}


def encode(document: RoomTable | RoomNews) -> bytes:
    """Return a document as JSON."""
    return msgspec.json.encode(document)


def decode_table(body: bytes) -> RoomTable:
    """Return the operator's answer.

    Raises:
        ValueError: it is none.
    """
    return msgspec.json.decode(body, type=RoomTable)


def decode_news(body: bytes) -> RoomNews:
    """Return a room's answer.

    Raises:
        ValueError: it is none.
    """
    return msgspec.json.decode(body, type=RoomNews)
