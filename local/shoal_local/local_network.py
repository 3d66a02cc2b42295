"""Addresses of this machine for pods and services, where loopback ones will not do."""

import subprocess
from ipaddress import IPv4Network


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
