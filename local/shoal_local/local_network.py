"""Addresses of this machine for pods and services, where loopback ones will not do."""

import socket
import subprocess
from ipaddress import IPv4Network

UNPRIVILEGED_STEP = 8000
"""Added to a port below 1024 that a plain user may not listen on: 80 becomes 8080."""


def make_local(network: IPv4Network) -> None:
    """Make every address of the network one of this machine; loopback addresses are already.

    Raises:
        OSError: that was not allowed; the message says how to do it by hand.
    """
    if network.is_loopback:
        return
    command = ["ip", "route", "replace", "local", str(network), "dev", "lo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)} failed (run it as root): {done.stderr.strip()}")


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
