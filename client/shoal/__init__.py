"""Serve and query models: the ``shoal`` command and the Python client.

Contains the clients, their errors, and the command that starts the other components as processes. Never imports those
components, and holds none of their logic.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from shoal.errors import (
    ConnectionFailed,
    DeadlineExceeded,
    InvalidInput,
    NotAllowed,
    NotFound,
    Overloaded,
    ServerFailed,
    ShoalError,
    TooLarge,
    Unavailable,
    WrongAddress,
)
from shoal_schema.wire.row_errors import RowError

if TYPE_CHECKING:
    from shoal.async_client import AsyncClient
    from shoal.client import Client
    from shoal.jobs import AsyncJob, Job
    from shoal.wire.signature import Signature, Tensor
else:
    # Imported on first use: the help, completion and Ctrl-C of the command do not wait for numpy and httpx.
    _HOMES = {
        "AsyncClient": "shoal.async_client",
        "AsyncJob": "shoal.jobs",
        "Client": "shoal.client",
        "Job": "shoal.jobs",
        "Signature": "shoal.wire.signature",
        "Tensor": "shoal.wire.signature",
    }

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Stored in the module, so that __getattr__ is not called again.
        return globals().setdefault(name, getattr(import_module(_HOMES[name]), name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "ConnectionFailed",
    "DeadlineExceeded",
    "InvalidInput",
    "Job",
    "NotAllowed",
    "NotFound",
    "Overloaded",
    "RowError",
    "ServerFailed",
    "ShoalError",
    "Signature",
    "Tensor",
    "TooLarge",
    "Unavailable",
    "WrongAddress",
]
