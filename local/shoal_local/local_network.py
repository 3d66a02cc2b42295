"""Where a service's port is listened on."""

import socket

UNPRIVILEGED_STEP = 8000
"""Added to a port below 1024 that a plain user may not listen on: 80 becomes 8080."""


def reached_port(port: int) -> int:
    """Return where a service's port is listened on: a step above, if only the superuser may take it."""
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except PermissionError:
            return port + UNPRIVILEGED_STEP
        except OSError:
            pass  # Somebody has it, so it is not forbidden.
    return port
