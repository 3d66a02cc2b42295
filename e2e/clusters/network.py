"""A network for a control plane, its node and its callers: nothing in it reaches any other machine."""

from contextlib import AbstractContextManager

from tests import networks

HOST = "10.99.0.1"
POD_CIDR = "10.99.0.0/24"
SERVICE_CIDR = "10.96.0.0/16"


def own_network() -> AbstractContextManager[None]:
    """Move this thread, and all that it starts until the block ends, to that network."""
    return networks.own_network(("ip", "route", "add", "local", POD_CIDR, "dev", "lo"))
