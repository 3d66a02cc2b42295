"""One HTTP exchange as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send: the path begins with a slash and is relative to the server's base URL."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer that came whole; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
