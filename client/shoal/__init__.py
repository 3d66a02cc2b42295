"""Serve models and ask them: the ``shoal`` command and the Python client.

Owns what a caller sees: the clients, their errors, and the command that starts the other
components as processes. Never imports those components, and holds none of their logic.
"""

from shoal.client import AsyncClient, Client
from shoal.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    Overloaded,
    RowError,
    ServerFailed,
    ShoalError,
    TooLarge,
    Unavailable,
)
from shoal.wire.signature import Signature, Tensor

__all__ = [
    "AsyncClient",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "InvalidInput",
    "NotFound",
    "Overloaded",
    "RowError",
    "ServerFailed",
    "ShoalError",
    "Signature",
    "Tensor",
    "TooLarge",
    "Unavailable",
]
