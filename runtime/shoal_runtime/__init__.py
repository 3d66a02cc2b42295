"""The model runtime of Shoal: loads one model and runs batches of it on one device.

The runtime owns the device, the model's files in memory and its side of the wire protocol. It does not schedule
requests, and does not depend on the clients' protocols or Kubernetes.

Models import `Context`, `ItemError`, `PaddingRule` and `TensorSpec` from this package (docs/how-to/handlers.md).
"""

from shoal_runtime.errors import ItemError
from shoal_runtime.handlers.base import Context
from shoal_runtime.signature.spec import PaddingRule, TensorSpec

__all__ = ["Context", "ItemError", "PaddingRule", "TensorSpec"]
