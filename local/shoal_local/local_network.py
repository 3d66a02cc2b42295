"""The port on this machine at which a service's port is reachable."""

import socket

UNPRIVILEGED_STEP = 8000
"""Added to a port below 1024 that only root may listen on: 80 becomes 8080."""


def local_port(port: int) -> int:
    """Return the port, plus `UNPRIVILEGED_STEP` if only root may listen on it."""
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except PermissionError:
            return port + UNPRIVILEGED_STEP
        except OSError:
            pass  # In use, so not forbidden.
    return port
