"""Shoal's runtime as the proxy sees it: its name, and the addresses of several that serve one model."""

from shoal_schema.fields.addresses import Address

RUNTIME_NAME = "shoal-runtime"
"""Name in the V2 server metadata. This runtime executes one batch at a time."""
PRECISION = "precision"
"""Key in the readiness response and in the model metadata: the precision chosen by measurement; absent if none was."""
MODEL_DIGEST = "model_digest"
"""Key in the readiness response of one of several instances: digest of the state of the model's files."""
FORWARD_TIMEOUT = "forward_timeout_s"
"""Key in the readiness response: the limit of a forward that the model declares; absent if the setting applies."""
MAX_INSTANCES = 64


def instance_address(first: Address, number: int) -> Address:
    """Return the address of instance ``number``, counted from 0.

    The first instance has the address ``first``. Of a Unix socket, the others have the path with a suffix; of TCP, the
    following ports.
    """
    if not number:
        return first
    if first.path:
        return Address(path=f"{first.path}.{number}")
    return Address(first.host, first.port + number)
