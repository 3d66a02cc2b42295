"""The context of handlers."""

from shoal_runtime.formats.torchserve_context import Context, RequestProcessor

__all__ = ["Context", "RequestProcessor"]
