"""TorchServe's context, imported by handlers from this module."""

from shoal_runtime.formats.torchserve_context import Context, RequestProcessor

__all__ = ["Context", "RequestProcessor"]
